// A small chart, beside the number that it explains.

import { find, h, svg } from "./dom.js";
import { pointAt } from "./parts.js";

const WIDTH = 120;
const HEIGHT = 28;
const MOST_BARS = 60;

/**
 * Bars from zero, one for each value, or for the sum of some where there are many. `label` says in words what they
 * show. `shares`: as `bands`.
 *
 * @param {readonly number[]} values
 * @param {string} label
 * @param {readonly number[]} [shares]
 */
export function bars(values, label, shares = []) {
  const size = perBar(values.length);
  values = together(values);
  const most = Math.max(...values, 0);
  const width = WIDTH / Math.max(values.length, 1);
  return picture(label, [
    ...bands(together(shares).map((share) => share / size)),
    ...values.map((value, index) => {
      const height = most > 0 ? Math.max((HEIGHT * value) / most, value > 0 ? 1.5 : 0) : 0;
      return svg("rect", {
        class: "column",
        x: String(index * width),
        y: String(HEIGHT - height),
        width: String(Math.max(width - 1, 0.5)),
        height: String(height),
      });
    }),
  ]);
}

/**
 * How many of so many values are one bar.
 *
 * @param {number} count
 */
export const perBar = (count) => Math.max(1, Math.ceil(count / MOST_BARS));

/**
 * The value of each bar.
 *
 * @param {readonly number[]} values
 */
export function together(values) {
  const size = perBar(values.length);
  return Array.from({ length: Math.ceil(values.length / size) }, (_, index) =>
    values.slice(index * size, (index + 1) * size).reduce((sum, value) => sum + value, 0),
  );
}

/**
 * A line, from zero to the highest value; it is broken where a value is missing, and a value between two gaps is a
 * dot. `arm`: the number of its colour. `shares`: as `bands`.
 *
 * @param {readonly (number | null)[]} values
 * @param {string} label
 * @param {number} [arm]
 * @param {readonly number[]} [shares]
 */
export function line(values, label, arm = 1, shares = []) {
  const most = Math.max(...values.map((value) => value ?? 0), 0);
  const step = WIDTH / Math.max(values.length - 1, 1);
  /** @param {number} value */
  const height = (value) => (most > 0 ? HEIGHT - 1 - ((HEIGHT - 2) * value) / most : HEIGHT - 1);
  let path = "";
  let dots = "";
  let isDrawn = false;
  for (const [index, value] of values.entries()) {
    if (value !== null) {
      const at = `${(values.length > 1 ? index * step : WIDTH / 2).toFixed(1)} ${height(value).toFixed(1)}`;
      path += `${isDrawn ? "L" : "M"}${at}`;
      if (!isDrawn && (values[index + 1] ?? null) === null) dots += `M${at}h0`;
    }
    isDrawn = value !== null;
  }
  return picture(label, [
    ...bands(shares),
    svg("path", { d: path || "M0 0", class: `curve arm-stroke-${arm}` }),
    ...(dots ? [svg("path", { d: dots, class: `curve dot arm-stroke-${arm}` })] : []),
  ]);
}

/**
 * What shades points: the more, the larger the share.
 *
 * @param {readonly number[]} shares From 0 to 1, one for each point.
 */
function bands(shares) {
  const width = WIDTH / Math.max(shares.length, 1);
  return shares.flatMap((share, index) =>
    share > 0
      ? svg("rect", {
          class: "band",
          x: String(index * width),
          y: "0",
          width: String(width),
          height: String(HEIGHT),
          "fill-opacity": String(0.15 + 0.15 * Math.min(share, 1)),
        })
      : [],
  );
}

/**
 * A picture between its axes: from zero to `most`, and with labels of times from the first to the last. `readings` say
 * in words what its points show, from the first to the last: the one under the pointer, or to which arrow keys have
 * moved, takes the place of the times.
 *
 * @param {SVGElement} picture
 * @param {readonly string[]} times
 * @param {string | null} [most]
 * @param {readonly string[]} [readings]
 */
export function withAxes(picture, times, most = null, readings = []) {
  const last = readings.length - 1;
  /** @param {HTMLElement} plot */
  const slider = (plot) => /** @type {SVGElement} */ (plot.querySelector(".sparkline"));
  /**
   * @param {SVGElement} of
   * @param {number} point
   */
  const move = (of, point) => {
    of.setAttribute("aria-valuenow", String(point));
    of.setAttribute("aria-valuetext", readings[point]);
  };
  /**
   * @param {HTMLElement} plot
   * @param {number} point
   */
  const show = (plot, point) => {
    const shown = Math.min(Math.max(point, 0), last);
    move(slider(plot), shown);
    const cursor = h("span", { class: "cursor" });
    cursor.style.left = `${(100 * (shown + 0.5)) / readings.length}%`;
    find(plot, ".reading").replaceChildren(readings[shown], cursor);
  };
  /** @param {HTMLElement} plot */
  const pointOf = (plot) => Number(slider(plot).getAttribute("aria-valuenow"));
  /** @param {PointerEvent & {currentTarget: HTMLElement}} event */
  const read = ({ currentTarget: plot, clientX }) => {
    const { left, width } = slider(plot).getBoundingClientRect();
    show(plot, Math.floor(((clientX - left) / width) * readings.length));
  };
  /** @param {Event & {currentTarget: HTMLElement}} event */
  const leave = ({ currentTarget: plot }) => {
    find(plot, ".reading").textContent = "";
  };
  /** @param {KeyboardEvent & {currentTarget: HTMLElement}} event */
  const press = (event) => {
    const plot = event.currentTarget;
    const point = pointAt(event.key, pointOf(plot), readings.length);
    if (point !== null) {
      event.preventDefault(); // the page does not scroll
      show(plot, point);
    } else if (event.key === "Escape") leave(event);
  };
  const handlers = {
    pointermove: read,
    pointerdown: read,
    pointerleave: leave,
    keydown: press,
    focusin: (/** @type {Event & {currentTarget: HTMLElement}} */ { currentTarget: plot }) => show(plot, pointOf(plot)),
    focusout: leave,
  };
  if (readings.length) {
    const attributes = { role: "slider", tabindex: "0", "aria-valuemin": "0", "aria-valuemax": String(last) };
    for (const [name, value] of Object.entries(attributes)) picture.setAttribute(name, value);
    move(picture, last);
  }
  return h(
    "div",
    { class: "plotted", on: readings.length ? handlers : {} },
    most === null
      ? null
      : h(
          "div",
          { class: "values small", "aria-hidden": "true" },
          [most === "0" ? "" : most, "0"].map((text) => h("span", {}, text)),
        ),
    picture,
    h(
      "div",
      { class: "times small", "aria-hidden": "true" },
      times.map((text) => h("span", {}, text)),
    ),
    // Kept: a page that reads its data again would empty it under a pointer that rests.
    h("div", { class: "reading small", "aria-hidden": "true", "data-kept": readings.length > 0 }),
  );
}

/**
 * @param {string} label
 * @param {readonly SVGElement[]} marks
 */
function picture(label, marks) {
  return svg(
    "svg",
    {
      class: "sparkline",
      preserveAspectRatio: "none",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": label,
    },
    marks,
  );
}
