import { h } from "../dom.js";

export const title = "Playground";

export async function mount(root, context) {
  root.append(h("h1", {}, title));
  return () => {};
}
