export interface Fact {
  name: string;
  title: string;
  value: string;
  detail: string;
}

/** The main facts of a view, in words. */
export function Facts({ facts }: { facts: Fact[] }) {
  return (
    <ul class="facts" aria-label="Main facts">
      {facts.map((fact) => (
        <li key={fact.name} data-fact={fact.name}>
          <span class="title">{fact.title}</span> <strong>{fact.value}</strong> <span class="detail">{fact.detail}</span>
        </li>
      ))}
    </ul>
  );
}
