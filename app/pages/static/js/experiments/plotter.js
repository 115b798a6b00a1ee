// Loads uPlot with the first chart: only one page needs it, and no other should wait for it.

let loaded = null;

/** Resolves to uPlot's class. Rejects if its file cannot be fetched; the next call tries again. */
export function plotter() {
  loaded ??= Promise.all([element("link", { rel: "stylesheet", href: "/ui/static/uPlot.min.css" }), element("script", { src: "/ui/static/uPlot.iife.js" })]).then(
    () => globalThis.uPlot,
    (error) => {
      loaded = null;
      throw error;
    },
  );
  return loaded;
}

function element(tag, attributes) {
  return new Promise((resolve, reject) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.addEventListener("load", resolve);
    made.addEventListener("error", () => (made.remove(), reject(new Error("The chart's script cannot be loaded"))));
    document.head.append(made);
  });
}
