// Talks to the admin API. The key lives in this module, and in the tab's storage only if its owner wants that.

const STORE = "queen-admin-key";
let key = sessionStorage.getItem(STORE);

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status; // 0: no answer at all
  }
}

export const hasKey = () => key !== null;

export function setKey(text, keep) {
  if (!/^[\x21-\x7e]+$/.test(text)) throw new ApiError(401, "This is not a key: a key has no spaces and only ASCII characters.");
  key = text;
  if (keep) sessionStorage.setItem(STORE, text);
}

export function dropKey() {
  key = null;
  sessionStorage.removeItem(STORE);
}

async function call(path, options) {
  let reply;
  try {
    const headers = { Authorization: `Bearer ${key}`, ...options.headers };
    const more = { cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(15000) };
    reply = await fetch(path, { ...more, ...options, headers });
  } catch {
    throw new ApiError(0, "The server does not answer. Check that it runs and that this machine can reach it.");
  }
  let body;
  try {
    body = await reply.json();
  } catch {
    throw new ApiError(reply.status, `Something else than the server answered, with status ${reply.status}. Check that the server runs, and read what the proxy in front of it logs.`);
  }
  if (!reply.ok) throw new ApiError(reply.status, body.error ?? `status ${reply.status}`);
  return body;
}

export const get = (name, parameters = {}) => call(`admin/${name}?${new URLSearchParams(parameters)}`, {});

export const post = (name, body) =>
  call(`admin/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
