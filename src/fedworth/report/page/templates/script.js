"use strict";
{ // Only enhances: without a script the page shows every number. Text goes in by textContent alone.
  const $ = (query, root = document) => root.querySelector(query);
  const $$ = (query, root = document) => [...root.querySelectorAll(query)];
  const data = JSON.parse($("#data").textContent), n = data.clients.length;
  document.documentElement.classList.add("js");

  const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const reader = (text, decimals, width) => { // numbers as the report has them, rounded to `decimals`; null without one
    const words = new DataView(bytes(text).buffer);
    return (k, t) => { const whole = words.getInt16(2 * (k * width + t), true); return whole === -32768 ? null : whole / 10 ** decimals; };
  };
  const signed = (x, decimals) => x === null ? "no value" : (x < 0 ? "−" : "+") + Math.abs(x).toFixed(Math.max(0, decimals));

  // theme: follows the system until the reader chooses; nothing is stored
  const dark = matchMedia("(prefers-color-scheme: dark)"), theme = $("#theme"), root = document.documentElement;
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const label = () => { theme.textContent = isDark() ? "Light view" : "Dark view"; };
  theme.hidden = false; label(); dark.addEventListener("change", label);
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; label(); });

  // tables: sorted by a click on a heading; rows without a number come last
  const order = (numbers, key, sign) => (a, b) => {
    if (key === "name") return sign * data.clients[a.dataset.k].localeCompare(data.clients[b.dataset.k]);
    const x = numbers[a.dataset.k][key], y = numbers[b.dataset.k][key];
    return x === null || y === null ? (x === null) - (y === null) : sign * (x - y);
  };
  $$("table[data-sort]").forEach(table => $$("thead th[data-key]", table).forEach(th => {
    const body = table.tBodies[0], numbers = data[table.dataset.sort];
    const button = document.createElement("button");
    button.type = "button"; button.append(...th.childNodes); th.append(button);
    button.addEventListener("click", () => {
      const key = th.dataset.key, was = th.getAttribute("aria-sort");
      const down = was ? was === "ascending" : key !== "name" && th.dataset.low === undefined;
      $$("th", table.tHead).forEach(other => other.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...$$("tr", body).sort(order(numbers, key, down ? -1 : 1)));
    });
  }));
  const fold = $("#fold"), folded = $$("tr[data-fold]");
  if (folded.length) {
    folded.forEach(tr => tr.classList.add("folded")); fold.hidden = false;
    fold.addEventListener("click", () => { folded.forEach(tr => tr.classList.remove("folded")); fold.hidden = true; });
  }

  // numbers under the pointer, or under the arrow keys; the same words go to a screen reader
  const tip = $("#tip"), live = $("#live");
  const show = (text, x, y) => {
    tip.textContent = text; tip.style.display = "block";
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = (y + 16 + box.height > innerHeight ? y - box.height - 10 : y + 16) + "px";
  };
  const within = (x, most) => Math.max(0, Math.min(most, x));
  const explore = (plot, mark, columns, rows, describe, isCells) => { // rows: how many there are to step through
    let c = 0, r = 0;
    const place = (x, y, spoken) => {
      const box = plot.getBoundingClientRect(), text = describe(c, r);
      mark.style.display = "block";
      mark.style.left = 100 * c / (isCells ? columns : Math.max(1, columns - 1)) + "%";
      if (isCells) { mark.style.width = 100 / columns + "%"; mark.style.top = 100 * r / rows + "%"; mark.style.height = 100 / rows + "%"; }
      show(text, x ?? box.left + box.width * c / columns, y ?? box.top + (isCells ? box.height * r / rows : 20));
      if (spoken) live.textContent = text;
    };
    const hide = () => { mark.style.display = tip.style.display = "none"; $$(".on", plot).forEach(p => p.classList.remove("on")); };
    plot.addEventListener("pointermove", event => {
      const box = plot.getBoundingClientRect();
      const fx = (event.clientX - box.left) / box.width, fy = (event.clientY - box.top) / box.height;
      c = within(isCells ? Math.floor(fx * columns) : Math.round(fx * (columns - 1)), columns - 1);
      r = isCells ? within(Math.floor(fy * rows), rows - 1) : describe.nearest ? describe.nearest(c, fy) : 0;
      place(event.clientX, event.clientY);
    });
    plot.addEventListener("pointerleave", hide); plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", event => {
      if (event.key === "Escape") hide();
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!step || (step[1] && rows < 2)) return;
      event.preventDefault();
      c = within(c + step[0], columns - 1); r = within(r + step[1], rows - 1);
      place(null, null, true);
    });
  };

  const gains = $("#gains");
  if (gains) explore(gains, $(".mark", gains), data.gains.length, 1, c =>
    `${c ? "After round " + data.numbers[c - 1] : "Before the first round"}\nimprovement ${(data.gains[c] < 0 ? "−" : "+") + Math.abs(data.gains[c]).toPrecision(4)}`);

  const lines = $("#lines");
  if (lines) {
    const sums = reader(data.sums, data.sums_decimals, data.picks.length), ranked = data.order.filter(k => data.drawn.includes(k));
    const describe = (c, r) => {
      const k = ranked[r];
      $$("path", lines).forEach(p => p.classList.toggle("on", p.dataset.k == k));
      return `${data.clients[k]}\nafter round ${data.numbers[data.picks[c]]}: ${signed(sums(k, c), data.sums_decimals)}`;
    };
    describe.nearest = (c, fy) => {
      const value = data.high - fy * (data.high - data.low);
      return ranked.reduce((best, k, r) => Math.abs(sums(k, c) - value) < Math.abs(sums(ranked[best], c) - value) ? r : best, 0);
    };
    explore(lines, $(".mark", lines), data.picks.length, ranked.length, describe);
  }

  const heat = $("#heat");
  if (heat) {
    const T = data.n_columns, at = reader(data.cells, data.cells_decimals, T), bits = bytes(data.heard), row = Math.ceil(T / 8);
    const heard = (k, t) => bits[k * row + (t >> 3)] >> (t & 7) & 1;
    const rounds = c => {
      const first = c * data.per_column, last = Math.min(first + data.per_column, data.numbers.length) - 1;
      return first === last ? `round ${data.numbers[first]}` : `rounds ${data.numbers[first]} to ${data.numbers[last]}`;
    };
    explore(heat, $(".cell", heat), T, n, (c, r) => {
      const k = data.order[r];
      return `${data.clients[k]}\n${rounds(c)}: ${signed(at(k, c), data.cells_decimals)}\n${heard(k, c) ? "took part" : "did not take part"}`;
    }, true);

    // the numbers, for a spreadsheet; a text that it would run as a formula gets a quote
    const cell = x => typeof x === "string" ? '"' + (/^[=+\-@\t\r]/.test(x) ? "'" : "") + x.replaceAll('"', '""') + '"' : x ?? "";
    const csv = $("#csv");
    csv.hidden = false;
    csv.addEventListener("click", () => {
      const columns = Array.from({ length: T }, (_, t) => t);
      const head = ["client", ...columns.map(rounds)];
      const rows = data.clients.map((name, k) => [name, ...columns.map(t => at(k, t))]);
      const text = [head, ...rows].map(line => line.map(cell).join(",")).join("\n") + "\n";
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
      link.download = "by-round.csv"; link.click();
    });
  }
  addEventListener("beforeprint", () => $$("details").forEach(d => { d.open = true; }));
}
