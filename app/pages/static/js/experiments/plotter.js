// Loads uPlot with the first chart: only one page needs it, and no other should wait for it.

let loaded = null;

/** Resolves to uPlot's class. Rejects if its file cannot be fetched; the next call tries again. */
export function plotter() {
  speakPlainly();
  loaded ??= Promise.all([
    element("link", { rel: "stylesheet", href: "/ui/static/uPlot.min.css" }),
    element("script", { src: "/ui/static/uPlot.iife.js" }),
  ]).then(
    () => globalThis.uPlot,
    (error) => {
      loaded = null;
      throw error;
    },
  );
  return loaded;
}

/**
 * uPlot formats numbers in the browser's language as it loads. Some browsers name theirs in a form that `Intl` refuses,
 * such as "en-US@posix" after LANG=C, and then it would not load: it gets the language of this console's own numbers.
 */
function speakPlainly() {
  try {
    new Intl.NumberFormat(navigator.language);
  } catch {
    Object.defineProperty(navigator, "language", { value: "en-GB", configurable: true });
  }
}

function element(tag, attributes) {
  return new Promise((resolve, reject) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.addEventListener("load", resolve);
    made.addEventListener("error", () => (made.remove(), reject(new Error("The chart's script cannot be loaded"))));
    document.head.append(made);
  });
}
