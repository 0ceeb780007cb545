// Which of the two views is shown: #/PATH is a cell, so that it can be cited; everything else is the overview.

let place = 0; // where the overview was left

function route() {
  const [overview, main] = [byId("overview"), byId("cell")];
  const path = location.hash.startsWith("#/") ? location.hash.slice(2) : null;
  if (path !== null && main.hidden) place = scrollY;
  overview.hidden = path !== null;
  main.hidden = path === null;
  if (path === null) {
    document.title = TITLE;
    main.replaceChildren();
    if (location.hash === "#submit") byId("submit").focus();
    else scrollTo(0, place);
    return;
  }
  const cell = DATA.cells.find((one) => addressOf(one) === location.hash || one.path === decoded(path));
  if (cell) showCell(cell, main);
  else main.replaceChildren(...noCell());
  document.title = `${main.querySelector("h1").textContent} · ${TITLE}`;
  scrollTo(0, 0);
  main.querySelector("h1").focus({ preventScroll: true });
}

const noCell = () => [
  make("h1", { tabindex: "-1" }, "No such cell"),
  make("p", {}, "This page has no result at that address. ", make("a", { href: "#" }, "See all cells.")),
];

function decoded(path) {
  try {
    return decodeURIComponent(path);
  } catch {
    return null; // not an address of ours
  }
}

const TITLE = document.title;
drawTools();
drawTables();
addEventListener("hashchange", route);
route();
