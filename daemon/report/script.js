"use strict";
// A filter and sortable headings for the incident table. The page is complete without them.
(() => {
  const table = document.getElementById("incident-table");
  if (table) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const text = (row, column) => row.cells[column].textContent.trim();

    const box = document.createElement("input");
    box.type = "search";
    box.className = "filter";
    box.placeholder = "Filter by node, cause, decision, text";
    box.setAttribute("aria-label", "Filter incidents");
    const count = document.createElement("span");
    count.className = "quiet";
    count.setAttribute("role", "status");
    table.parentElement.before(box, count);
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const content = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => content.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = words.length ? ` ${shown} of ${rows.length}` : "";
    });

    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      if (heading.textContent === "Lasted" || heading.textContent === "Why") return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        rows.sort((a, b) => text(a, column).localeCompare(text(b, column), "en", { numeric: true }) * (down ? -1 : 1));
        body.append(...rows);
      });
    });
  }
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
})();
