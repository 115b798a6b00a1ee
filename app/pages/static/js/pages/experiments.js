import { h } from "../dom.js";

export const title = "Experiments";

export async function mount(root, context) {
  root.append(h("h1", {}, title));
  return () => {};
}
