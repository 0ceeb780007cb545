// What the theme makes with scripts, for people without a mouse: wide tables can be scrolled with keys, and every place
// with a copy button has a name of its own.
function name_all() {
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((one) => one.setAttribute("tabindex", "0"));
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((one) => {
    one.setAttribute("aria-label", "Code block " + ([...document.querySelectorAll("pre")].indexOf(one.closest("pre")) + 1));
  });
}
new MutationObserver(name_all).observe(document.documentElement, { childList: true, subtree: true });
name_all();
