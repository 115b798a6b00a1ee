import { h } from "../dom.js";

export const title = "Traffic";

export async function mount(root, context) {
  root.append(h("h1", {}, title));
  return () => {};
}
