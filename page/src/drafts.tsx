/** How drafts fare: by position in their block, and against what the drafter thought of them. */

import type { Bin, Speculation } from "./live-data";
import { counted, ordinal, percent, whole } from "./words";

export function Acceptance({ speculation }: { speculation: Speculation }) {
  const { verified_per_position: verified, accepted_per_position: accepted } = speculation;
  const rows = verified.map((count, place) => ({ place, count, right: accepted[place] ?? 0 })).filter(({ count }) => count > 0);
  return (
    <section class="card" aria-labelledby="acceptance-title">
      <h2 id="acceptance-title">Accepted, by place</h2>
      <p class="note">A request’s drafts stand one behind the other; the first refused one ends the row.</p>
      {rows.length === 0 && <p class="empty">No draft was verified yet.</p>}
      <table class="bars">
        <tbody>
          {rows.map(({ place, count, right }) => (
            <tr key={place}>
              <th scope="row">{ordinal(place + 1)} draft</th>
              <td class="bar"><span style={{ width: `${(100 * right) / count}%` }} /></td>
              <td class="number">{percent(right / count)}</td>
              <td class="number note">{whole(right)} of {whole(count)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

const SIZE = 240;
const EDGE = 34;
const place = (share: number) => EDGE + share * (SIZE - EDGE - 8);
const across = (share: number) => place(share);
const up = (share: number) => SIZE - place(share);

function Curve({ bins, of }: { bins: Bin[]; of: "said" | "calibrated" }) {
  return (
    <g class={`curve-${of}`}>
      <polyline points={bins.map((bin) => `${across(bin[of])},${up(bin.accepted)}`).join(" ")} />
      {bins.map((bin) => (
        <circle key={bin.said} cx={across(bin[of])} cy={up(bin.accepted)} r={4}>
          <title>{`${counted(bin.judged, "draft")}: ${percent(bin[of])} thought, ${percent(bin.accepted)} accepted`}</title>
        </circle>
      ))}
    </g>
  );
}

export function Calibration({ bins }: { bins: Bin[] }) {
  const judged = bins.reduce((total, bin) => total + bin.judged, 0);
  const mean = (key: "said" | "accepted") => bins.reduce((total, bin) => total + bin.judged * bin[key], 0) / judged;
  return (
    <section class="card" aria-labelledby="calibration-title">
      <h2 id="calibration-title">Thought and came true</h2>
      {judged === 0 ? (
        <p class="empty">The drafter has not said yet how sure it is of a draft; some drafters never do.</p>
      ) : (
        <>
          <p data-fact="calibration">
            The drafter gave its drafts a chance of {percent(mean("said"))} on average; {percent(mean("accepted"))} of{" "}
            {whole(judged)} came true.
          </p>
          <ul class="legend">
            <li><i class="swatch back-said" /> what the drafter said</li>
            <li><i class="swatch back-calibrated" /> what the scheduler made of it</li>
            <li>on the dashed line it came true as often as thought</li>
          </ul>
          <svg class="calibration" viewBox={`0 0 ${SIZE} ${SIZE}`} role="img" aria-label="Share of drafts accepted, over the chance they were given; the table below has the figures.">
            {[0, 0.5, 1].map((share) => (
              <g key={share}>
                <line class="grid" x1={across(0)} x2={across(1)} y1={up(share)} y2={up(share)} />
                <line class="grid" y1={up(0)} y2={up(1)} x1={across(share)} x2={across(share)} />
                <text x={across(0) - 5} y={up(share) + 4} text-anchor="end">{100 * share}</text>
                <text x={across(share)} y={SIZE - EDGE + 15} text-anchor="middle">{100 * share}</text>
              </g>
            ))}
            <text x={across(0.5)} y={SIZE - 4} text-anchor="middle">chance thought, %</text>
            <text class="upright" x={-up(0.5)} y={9} text-anchor="middle">accepted, %</text>
            <line class="diagonal" x1={across(0)} y1={up(0)} x2={across(1)} y2={up(1)} />
            <Curve bins={bins} of="said" />
            <Curve bins={bins} of="calibrated" />
          </svg>
          <details>
            <summary>Figures</summary>
            <table>
              <thead><tr><th scope="col">said</th><th scope="col">calibrated</th><th scope="col">accepted</th><th scope="col">drafts</th></tr></thead>
              <tbody>
                {bins.map((bin) => (
                  <tr key={bin.said}>
                    <td>{percent(bin.said)}</td><td>{percent(bin.calibrated)}</td><td>{percent(bin.accepted)}</td><td>{whole(bin.judged)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </details>
        </>
      )}
    </section>
  );
}
