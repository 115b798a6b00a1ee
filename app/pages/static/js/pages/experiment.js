import { h } from "../dom.js";

export const title = "Experiment";

export async function mount(root, context) {
  root.append(h("h1", {}, title));
  return () => {};
}
