// A small chart, beside the number that it explains.

import { find, h, svg } from "./dom.js";
import { pointAt } from "./parts.js";

const WIDTH = 120;
const HEIGHT = 28;
const LEAST = 1; // the width of an outage, so that it can be seen in a week
const CAP = 2; // the height of its mark, which tells it from what is drawn in red

/** @type {Record<string, number>} */
const VERTICAL = { ArrowUp: -1, ArrowDown: 1 };

/** @typedef {readonly (readonly [number, number])[]} Spans Parts of the time that a picture shows, from 0 to 1. */

/**
 * Bars from zero, one for each value. `label` says in words what they show. `spans`: what is shaded.
 *
 * @param {readonly number[]} values
 * @param {string} label
 * @param {Spans} [spans]
 */
export function bars(values, label, spans = []) {
  const most = Math.max(...values, 0);
  const width = WIDTH / Math.max(values.length, 1);
  return picture(label, [
    ...bands(spans),
    ...values.map((value, index) => {
      const height = most > 0 ? Math.max((HEIGHT * value) / most, value > 0 ? 1.5 : 0) : 0;
      return svg("rect", {
        class: "column",
        x: String(index * width),
        y: String(HEIGHT - height),
        width: String(Math.max(width - 1, width * 0.8)),
        height: String(height),
      });
    }),
  ]);
}

/**
 * A line, from zero to the highest value; it is broken where a value is missing, and a value between two gaps is a
 * dot. Each value is in the middle of its time. `arm`: the number of its colour. `spans`: what is shaded.
 *
 * @param {readonly (number | null)[]} values
 * @param {string} label
 * @param {number} [arm]
 * @param {Spans} [spans]
 */
export function line(values, label, arm = 1, spans = []) {
  const most = Math.max(...values.map((value) => value ?? 0), 0);
  const step = WIDTH / Math.max(values.length, 1);
  /** @param {number} value */
  const height = (value) => (most > 0 ? HEIGHT - 1 - ((HEIGHT - 2) * value) / most : HEIGHT - 1);
  let path = "";
  let dots = "";
  let isDrawn = false;
  for (const [index, value] of values.entries()) {
    if (value !== null) {
      const at = `${((index + 0.5) * step).toFixed(1)} ${height(value).toFixed(1)}`;
      path += `${isDrawn ? "L" : "M"}${at}`;
      if (!isDrawn && (values[index + 1] ?? null) === null) dots += `M${at}h0`;
    }
    isDrawn = value !== null;
  }
  return picture(label, [
    ...bands(spans),
    svg("path", { d: path || "M0 0", class: `curve arm-stroke-${arm}` }),
    ...(dots ? [svg("path", { d: dots, class: `curve dot arm-stroke-${arm}` })] : []),
  ]);
}

/**
 * What shades times, with a mark on its top.
 *
 * @param {Spans} spans
 */
function bands(spans) {
  return spans.flatMap(([from, to]) => {
    const width = Math.max((to - from) * WIDTH, LEAST);
    const x = String(Math.min(from * WIDTH, WIDTH - width));
    /** @param {number} height */
    const part = (height) => ({ x, y: "0", width: String(width), height: String(height) });
    return [svg("rect", { class: "band", ...part(HEIGHT) }), svg("rect", { class: "cap", ...part(CAP) })];
  });
}

/**
 * Makes several charts one stop of the Tab key: up and down lead from one to the next.
 *
 * @template {HTMLElement} Charts
 * @param {Charts} charts
 */
export function oneStop(charts) {
  charts.setAttribute("data-charts", "");
  for (const [index, slider] of charts.querySelectorAll('[role="slider"]').entries())
    slider.setAttribute("tabindex", index ? "-1" : "0");
  return charts;
}

/**
 * The chart to which a key leads from another one of its group.
 *
 * @param {string} key
 * @param {SVGElement} from
 */
function neighbour(key, from) {
  const step = VERTICAL[key];
  const charts = [...(from.closest("[data-charts]")?.querySelectorAll('[role="slider"]') ?? [])];
  return step ? /** @type {SVGElement | undefined} */ (charts[charts.indexOf(from) + step]) : undefined;
}

/**
 * A picture between its axes: from zero to `most`, and with labels of times at their places. `readings` say
 * in words what its points show, from the first to the last: the one under the pointer, or to which arrow keys have
 * moved, takes the place of the times.
 *
 * @param {SVGElement} picture
 * @param {readonly {text: string, at: number}[]} times
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
    const next = neighbour(event.key, slider(plot));
    const point = pointAt(event.key, pointOf(plot), readings.length);
    if (next) {
      event.preventDefault(); // the page scrolls only if it must
      next.focus();
    } else if (point !== null && !(event.key in VERTICAL && plot.closest("[data-charts]"))) {
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
      // In the middle of its place, but at the two ends.
      times.map(({ text, at }) => {
        const shift = at === 0 ? 0 : at === 1 ? 100 : 50;
        return h("span", { style: { left: `${100 * at}%`, transform: `translateX(-${shift}%)` } }, text);
      }),
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
