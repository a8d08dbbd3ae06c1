// Search shows excerpts of the pages it finds. A browser refuses to fetch them from a disk.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// For keyboards and screen readers: what scrolls sideways can be focused, captions of the sidebar
// are headings of a level, both sidebars have names, and an empty cell is no heading.
const SCROLLERS = ".highlight pre, .output, .table-wrapper, div.math";
const reach = () => document.querySelectorAll(SCROLLERS).forEach((e) => {
  if (e.scrollWidth > e.clientWidth) e.tabIndex = 0;
  else e.removeAttribute("tabindex");
});
addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("p.caption[role=heading]").forEach((e) => e.setAttribute("aria-level", "2"));
  for (const [name, label] of [["sidebar", "Pages"], ["toc", "On this page"]]) {
    document.querySelectorAll(`aside.${name}-drawer`).forEach((e) => e.setAttribute("aria-label", label));
  }
  document.querySelectorAll("thead th").forEach((e) => {
    if (!e.textContent.trim()) e.replaceWith(document.createElement("td"));
  });
  reach();
});
addEventListener("load", reach);
addEventListener("resize", reach);
addEventListener("change", () => setTimeout(reach)); // another tab shows

// A figure that is shown smaller than it is opens in its own size.
addEventListener("load", () => document.querySelectorAll("article img").forEach((img) => {
  if (img.closest("a") || img.naturalWidth <= img.clientWidth) return;
  const link = document.createElement("a");
  link.href = img.currentSrc;
  link.title = "Show in full size";
  link.className = "enlarge";
  img.replaceWith(link);
  link.append(img);
}));
