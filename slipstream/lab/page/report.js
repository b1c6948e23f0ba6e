"use strict";
(async () => {
  const $ = (id) => document.getElementById(id);
  const bytes = Uint8Array.from(atob($("data").textContent), (c) => c.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = JSON.parse(await new Response(inflated).text());
  const ROWS = ["decode", "verify", "prompt", "reserved"];
  const ROW_WORDS = { decode: "decode rows", verify: "verify rows", prompt: "prompt rows", reserved: "reserved for drafts", unused: "unused" };
  const MODE_WORDS = { full_graph: "full graph", piecewise: "piecewise graphs", eager: "eager" };
  const MARGIN = { left: 44, right: 8 };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  const round = (value, digits = 3) => Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 3 });
  const percent = (share) => `${(100 * share).toFixed(share < 0.095 ? 1 : 0)} %`;

  // Columns of steps, as they were written, with starts and ends in seconds.
  for (const workload of data.workloads) {
    for (const run of workload.cases) {
      const { gap, took, decode, verify, prompt, requests } = run.steps;
      let now = 0;
      run.start = new Float64Array(took.length);
      run.end = new Float64Array(took.length);
      for (let i = 0; i < took.length; i++) {
        now += gap[i] / 1e5;
        run.start[i] = now;
        now += took[i] / 1e5;
        run.end[i] = now;
      }
      run.rows = { decode, verify, prompt, reserved: requests.map((n, i) => Math.min(n * run.slots, run.budget - decode[i] - verify[i] - prompt[i])) };
    }
    workload.end = Math.max(...workload.cases.map((run) => run.end[run.end.length - 1] || 0));
  }

  let workload = data.workloads[0];
  let view = [0, workload.end];

  const ticks = (low, high, count) => {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const found = [];
    for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) found.push(t);
    return { found, digits: Math.max(0, -Math.floor(Math.log10(step))) };
  };
  const timeText = (seconds, digits) => `${seconds.toFixed(digits)} s`;
  const xOf = (time, width) => MARGIN.left + ((time - view[0]) / (view[1] - view[0])) * (width - MARGIN.left - MARGIN.right);
  const timeOf = (x, width) => view[0] + ((x - MARGIN.left) / (width - MARGIN.left - MARGIN.right)) * (view[1] - view[0]);
  const stepAt = (run, time) => {
    let low = 0, high = run.start.length - 1;
    if (!run.start.length || time < run.start[0] || time > run.end[high]) return -1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (run.start[middle] <= time) low = middle; else high = middle - 1;
    }
    return low;
  };

  // -- every workload -------------------------------------------------------------------------------------------
  const drawDots = () => {
    $("dots").innerHTML = data.figures.map((figure) => {
      const values = data.workloads.flatMap((w) => w.cases.map((run) => run.figures[figure.name])).concat(Object.values(figure.published)).filter((v) => v != null);
      if (!values.length) return "";
      const most = Math.max(...values) * 1.06, width = 340, line = 22, top = 8;
      const height = top + data.workloads.length * line + 24;
      const x = (value) => 26 + (value / most) * (width - 40);
      const axis = ticks(0, most, 4);
      let svg = axis.found.map((t) => `<line x1="${x(t)}" x2="${x(t)}" y1="${top}" y2="${height - 22}" stroke="var(--grid)"/><text x="${x(t)}" y="${height - 6}" text-anchor="middle">${t.toLocaleString("en")}</text>`).join("");
      data.variants.forEach((variant, v) => {
        const value = figure.published[variant];
        if (value != null) svg += `<line x1="${x(value)}" x2="${x(value)}" y1="${top}" y2="${height - 22}" stroke="var(--variant-${v % 8})" stroke-dasharray="4 3"><title>${escape(variant)}, published: ${round(value, 4)}</title></line>`;
      });
      data.workloads.forEach((w, i) => {
        const y = top + i * line + line / 2;
        svg += `<text x="0" y="${y + 4}"><title>${escape(w.name)}</title>${i + 1}</text>`;
        w.cases.forEach((run, v) => {
          const value = run.figures[figure.name];
          if (value == null) return;
          const fitted = run.fitted.includes(figure.name);
          svg += `<circle cx="${x(value)}" cy="${y}" r="5" fill="${fitted ? "var(--card)" : `var(--variant-${v % 8})`}" stroke="var(--variant-${v % 8})" stroke-width="2"><title>${escape(w.name)}\n${escape(run.variant)}: ${round(value, 4)}${fitted ? " (fitted)" : ""}</title></circle>`;
        });
      });
      return `<div><h3>${escape(figure.label)}</h3><svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${escape(figure.label)} of every workload">${svg}</svg></div>`;
    }).join("");
    const lines = data.figures.some((figure) => Object.keys(figure.published).length) ? " · dashed: published · hollow: fitted" : "";
    const names = data.variants.map((name, v) => `<span class="key"><i class="swatch" style="background:var(--variant-${v % 8})"></i>${escape(name)}</span>`).join("");
    $("dots").insertAdjacentHTML("beforebegin", `<p class="legend-line">${names}${lines ? `<span>${lines}</span>` : ""} · rows: workloads in the table's order</p>`);
  };

  // -- one workload ---------------------------------------------------------------------------------------------
  const timeAxis = (width, y) => {
    const { found, digits } = ticks(view[0], view[1], Math.max(3, Math.floor(width / 110)));
    return found.map((t) => `<text x="${xOf(t, width)}" y="${y}" text-anchor="middle">${timeText(t, digits)}</text>`).join("");
  };

  const drawRunning = () => {
    const width = $("running").clientWidth, height = 170, bottom = height - 22, top = 8;
    const most = Math.max(...workload.cases.map((run) => run.steps.running.reduce((a, b) => Math.max(a, b), 1)));
    const y = (n) => bottom - (n / (most * 1.05)) * (bottom - top);
    const axis = ticks(0, most, 4);
    let svg = axis.found.filter(Number.isInteger).map((t) => `<line x1="${MARGIN.left}" x2="${width - MARGIN.right}" y1="${y(t)}" y2="${y(t)}" stroke="var(--grid)"/><text x="${MARGIN.left - 8}" y="${y(t) + 4}" text-anchor="end">${t}</text>`).join("");
    svg += timeAxis(width, height - 4);
    workload.cases.forEach((run, v) => {
      let path = "", lastX = -9, low = 0, high = 0, last = null;
      const flush = () => { if (last !== null) path += `L${lastX.toFixed(1)} ${y(high).toFixed(1)}${low < high ? `L${lastX.toFixed(1)} ${y(low).toFixed(1)}` : ""}L${lastX.toFixed(1)} ${y(last).toFixed(1)}`; };
      for (let i = 0; i < run.start.length; i++) {
        if (run.end[i] < view[0] || run.start[i] > view[1]) continue;
        const x = Math.max(xOf(run.start[i], width), MARGIN.left), n = run.steps.running[i];
        if (x - lastX >= 0.7) {
          flush();
          if (last !== null) path += `L${x.toFixed(1)} ${y(last).toFixed(1)}`;
          lastX = x; low = high = n;
        }
        low = Math.min(low, n); high = Math.max(high, n); last = n;
      }
      flush();
      if (last !== null && run.end[run.end.length - 1] <= view[1]) path += `L${xOf(run.end[run.end.length - 1], width).toFixed(1)} ${y(last).toFixed(1)}L${xOf(run.end[run.end.length - 1], width).toFixed(1)} ${y(0).toFixed(1)}`;
      svg += `<path d="M${path.slice(1)}" fill="none" stroke="var(--variant-${v % 8})" stroke-width="1.6"/>`;
    });
    $("running").innerHTML = `<svg height="${height}" style="height:${height}px" role="img" aria-label="running requests over time">${svg}</svg><p class="legend-line">${workload.cases.map((run, v) => `<span class="key"><i class="swatch" style="background:var(--variant-${v % 8})"></i>${escape(run.variant)}</span>`).join("")}</p>`;
  };

  const drawStrip = (canvas, run) => {
    const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = 150;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const g = canvas.getContext("2d");
    g.scale(scale, scale);
    const left = MARGIN.left, right = width - MARGIN.right, columns = Math.floor((right - left) * scale);
    const top = 6, bottom = height - 38, ribbon = 10;
    const sums = ROWS.map(() => new Float64Array(columns)), modes = data.modes.map(() => new Float64Array(columns)), covered = new Float64Array(columns);
    const perSecond = columns / (view[1] - view[0]);
    const first = Math.max(stepAt(run, view[0]), 0);
    const edges = [];
    for (let i = first; i < run.start.length && run.start[i] < view[1]; i++) {
      const from = Math.max((run.start[i] - view[0]) * perSecond, 0), to = Math.min((run.end[i] - view[0]) * perSecond, columns);
      for (let c = Math.floor(from); c < to && c < columns; c++) {
        const share = Math.min(to, c + 1) - Math.max(from, c);
        if (share <= 0) continue;
        covered[c] += share;
        for (let k = 0; k < ROWS.length; k++) sums[k][c] += share * run.rows[ROWS[k]][i];
        modes[run.steps.mode[i]][c] += share;
      }
      if (to - from > 5 * scale) edges.push(left + to / scale);
    }
    g.fillStyle = colour("unused");
    g.fillRect(left, top, right - left, bottom - top);
    let busiest = 1;
    for (let c = 0; c < columns; c++) if (covered[c]) busiest = Math.max(busiest, sums.reduce((a, sum) => a + sum[c] / covered[c], 0));
    const most = busiest > run.budget / 4 ? run.budget : Math.ceil(busiest * 1.1);
    const unit = (bottom - top) / most, thin = 1 / scale;
    for (let c = 0; c < columns; c++) {
      if (!covered[c]) continue;
      let y = bottom;
      const x = left + c / scale;
      for (let k = 0; k < ROWS.length; k++) {
        const tall = (sums[k][c] / covered[c]) * unit;
        if (tall <= 0) continue;
        g.fillStyle = palette[ROWS[k]];
        g.fillRect(x, y - tall, thin, tall);
        y -= tall;
      }
      y = bottom + 3 + ribbon;
      for (let m = 0; m < modes.length; m++) {
        const tall = (modes[m][c] / covered[c]) * ribbon;
        if (tall <= 0) continue;
        g.fillStyle = palette[data.modes[m]];
        g.fillRect(x, y - tall, thin, tall);
        y -= tall;
      }
    }
    g.fillStyle = palette.card;
    for (const x of edges) g.fillRect(x - 0.5, top, 1, bottom + 3 + ribbon - top);
    g.fillStyle = palette.soft;
    g.font = "12px system-ui, sans-serif";
    g.textAlign = "right";
    g.fillText(most, left - 8, top + 8);
    g.fillText("0", left - 8, bottom);
    g.fillText("mode", left - 8, bottom + 12);
    g.textAlign = "center";
    const { found, digits } = ticks(view[0], view[1], Math.max(3, Math.floor(width / 110)));
    for (const t of found) g.fillText(timeText(t, digits), xOf(t, width), height - 8);
  };

  let palette = {};
  const redraw = () => {
    palette = Object.fromEntries([...ROWS, "unused", ...data.modes, "card", "soft"].map((name) => [name, colour(name)]));
    drawRunning();
    document.querySelectorAll("#strips canvas").forEach((canvas, i) => drawStrip(canvas, workload.cases[i]));
    const all = view[0] <= 0 && view[1] >= workload.end;
    $("view").textContent = all ? `all ${workload.end.toFixed(1)} s` : `${view[0].toFixed(2)} s to ${view[1].toFixed(2)} s of ${workload.end.toFixed(1)} s`;
  };

  const setView = (low, high) => {
    const span = Math.min(Math.max(high - low, 0.02), workload.end);
    low = Math.min(Math.max(low, 0), workload.end - span);
    view = [low, low + span];
    requestAnimationFrame(redraw);
  };
  const zoom = (factor, around) => setView(around - (around - view[0]) * factor, around + (view[1] - around) * factor);

  const stepText = (run, i) => {
    const mode = MODE_WORDS[data.modes[run.steps.mode[i]]], reserved = run.rows.reserved[i];
    return `<b>${escape(run.variant)}, step ${i}</b>${run.start[i].toFixed(3)} s, ${round(run.steps.took[i] / 100)} ms, ${mode}<br>${run.rows.decode[i]} decode + ${run.rows.verify[i]} verify + ${run.rows.prompt[i]} prompt rows of ${run.budget}${reserved ? `<br>${reserved} rows reserved for drafts` : ""}<br>${run.steps.running[i]} running, ${run.steps.waiting[i]} waiting`;
  };
  const listen = (canvas, run) => {
    let dragged = null;
    const place = (event) => timeOf(event.clientX - canvas.getBoundingClientRect().left, canvas.clientWidth);
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, place(event)); }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { dragged = place(event); canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { dragged = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged !== null) { const by = dragged - place(event); setView(view[0] + by, view[1] + by); return; }
      const i = stepAt(run, place(event)), tip = $("tip");
      tip.hidden = i < 0;
      if (i < 0) return;
      tip.innerHTML = stepText(run, i);
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
    });
    canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
    canvas.addEventListener("dblclick", () => setView(0, workload.end));
    canvas.addEventListener("keydown", (event) => {
      const span = view[1] - view[0], middle = (view[0] + view[1]) / 2;
      if (event.key === "ArrowLeft") setView(view[0] - span / 4, view[1] - span / 4);
      else if (event.key === "ArrowRight") setView(view[0] + span / 4, view[1] + span / 4);
      else if (event.key === "+" || event.key === "=") zoom(0.5, middle);
      else if (event.key === "-") zoom(2, middle);
      else return;
      event.preventDefault();
    });
  };

  const bars = (rows) => rows.map(({ name, parts }) => `<div class="bar-row"><span>${escape(name)}</span><div class="bar">${parts.filter((p) => p.share > 0).map((p) => `<span class="${p.plain ? "plain" : ""}" style="flex:${p.share} 1 0;background:var(--${p.key})" title="${escape(p.title)}">${p.share > 0.05 ? percent(p.share) : ""}</span>`).join("")}</div></div>`).join("");
  const keys = (names, words) => `<p class="legend-line">${names.map((name) => `<span class="key"><i class="swatch" style="background:var(--${name})"></i>${words[name]}</span>`).join("")}</p>`;

  const drawBars = () => {
    const has = (name) => workload.cases.some((run) => run.rows[name] && run.rows[name].some((n) => n > 0));
    $("budget").innerHTML = keys([...ROWS.filter(has), "unused"], ROW_WORDS) + bars(workload.cases.map((run) => {
      const all = run.budget * run.start.length, sum = (values) => values.reduce((a, b) => a + b, 0);
      const parts = ROWS.map((key) => ({ key, share: sum(run.rows[key]) / all, plain: key === "reserved" }));
      parts.push({ key: "unused", share: 1 - parts.reduce((a, p) => a + p.share, 0), plain: true });
      for (const p of parts) p.title = `${ROW_WORDS[p.key]}: ${percent(p.share)}, ${round(p.share * run.budget)} a step`;
      return { name: run.variant, parts };
    }));
    const used = data.modes.filter((name, m) => workload.cases.some((run) => run.steps.mode.includes(m)));
    $("time").innerHTML = keys(used, MODE_WORDS) + bars(workload.cases.map((run) => {
      const spent = data.modes.map(() => 0), count = data.modes.map(() => 0);
      run.steps.mode.forEach((m, i) => { spent[m] += run.steps.took[i]; count[m] += 1; });
      const all = spent.reduce((a, b) => a + b, 0);
      return { name: `${run.variant}, ${round(all / 1e5)} s`, parts: data.modes.map((key, m) => ({ key, share: spent[m] / all, title: `${MODE_WORDS[key]}: ${count[m]} steps, ${round(spent[m] / 1e5)} s` })) };
    }));
    $("latencies").innerHTML = `<thead><tr><th class="text">variant</th>${data.latencies.map((l) => `<th>${escape(l)}</th>`).join("")}</tr></thead><tbody>${workload.cases.map((run) => `<tr><td class="text">${escape(run.variant)}</td>${run.latencies.map((v) => `<td>${v == null ? "–" : round(v)}</td>`).join("")}</tr>`).join("")}</tbody>`;
  };

  const show = (place) => {
    workload = data.workloads[place];
    view = [0, workload.end];
    $("strips").innerHTML = workload.cases.map((run) => `<div class="strip"><p>${escape(run.variant)} · ${run.start.length.toLocaleString("en")} steps in ${run.end[run.end.length - 1].toFixed(1)} s</p><canvas tabindex="0" role="img" aria-label="rows of every step of ${escape(run.variant)}"></canvas></div>`).join("");
    document.querySelectorAll("#strips canvas").forEach((canvas, i) => listen(canvas, workload.cases[i]));
    const modes = data.modes.filter((_, m) => workload.cases.some((run) => run.steps.mode.includes(m)));
    const rows = ROWS.filter((name) => workload.cases.some((run) => run.rows[name].some((n) => n > 0)));
    $("legend").innerHTML = [...rows, "unused"].map((n) => `<span class="key"><i class="swatch" style="background:var(--${n})"></i>${ROW_WORDS[n]}</span>`).join("") + "<br>" + modes.map((n) => `<span class="key"><i class="swatch" style="background:var(--${n})"></i>mode: ${MODE_WORDS[n]}</span>`).join("");
    drawBars();
    redraw();
  };

  $("workload").innerHTML = data.workloads.map((w, i) => `<option value="${i}">${i + 1}: ${escape(w.name)}</option>`).join("");
  $("workload").addEventListener("change", (event) => show(Number(event.target.value)));
  $("all").addEventListener("click", () => setView(0, workload.end));
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  drawDots();
  show(0);
})();
