// Asks before something is done; resolves to whether it was confirmed.

const byId = (id) => document.getElementById(id);

export function confirmed(title, text, yes, danger = false) {
  const dialog = byId("confirm");
  const opener = document.activeElement;
  byId("confirm-title").replaceChildren(...title);
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = yes;
  byId("confirm-yes").classList.toggle("danger", danger);
  dialog.returnValue = "";
  dialog.showModal();
  byId("confirm-no").focus();
  return new Promise((resolve) => {
    byId("confirm-yes").onclick = () => dialog.close("yes");
    byId("confirm-no").onclick = () => dialog.close("");
    dialog.onclose = () => {
      opener?.focus();
      resolve(dialog.returnValue === "yes");
    };
  });
}
