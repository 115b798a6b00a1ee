// Light, dark, or as the system is. A browser keeps the choice.

const STORED = "switchyard-theme";
/** @type {Record<string, string>} */
const NAMES = { "": "Auto", light: "Light", dark: "Dark" };
const THEMES = Object.keys(NAMES);

/** The event of the document after a change: what scripts have painted must be painted again. */
export const CHANGED = "themechange";

/** "light", "dark", or "" for the system's. */
function chosen() {
  const stored = localStorage.getItem(STORED) ?? "";
  return stored in NAMES ? stored : "";
}

export function isDark() {
  return chosen() === "dark" || (chosen() === "" && matchMedia("(prefers-color-scheme: dark)").matches);
}

/**
 * Applies the theme, and lets `button` change it.
 *
 * @param {HTMLElement} button
 */
export function themed(button) {
  function draw() {
    const name = NAMES[chosen()];
    document.documentElement.style.colorScheme = chosen() || "light dark";
    const icon = document.createElement("span");
    icon.className = "half";
    const label = document.createElement("span");
    label.textContent = name;
    button.replaceChildren(icon, label);
    button.setAttribute("aria-label", `Theme: ${name}`);
    document.dispatchEvent(new Event(CHANGED));
  }
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length];
    if (next) localStorage.setItem(STORED, next);
    else localStorage.removeItem(STORED);
    draw();
  });
  draw();
}
