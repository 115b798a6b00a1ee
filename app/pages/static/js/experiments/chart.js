// Confidence sequences: as they are now, a bar on an axis that all rows of a list share; and over time, with changes of
// plans and the verdict.

import { h } from "../dom.js";
import { count, moment, ticks } from "../format.js";
import { CHANGED } from "../frame.js";
import { pointAt } from "../parts.js";
import { amount, effectInWords, verdictInWords } from "./words.js";

const CLIPPED = 3; // an interval wider than this many minimal effects is cut off, so that the others stay readable
const ROUND = [1, 2, 4, 6, 10];
const LEAST = -1; // nothing falls by more than 100 %
const APART = 12; // labels closer than this many percent of the axis would touch

/**
 * The axis of relative effects: round numbers around every estimate, and every interval within reason.
 *
 * @param {Compared[]} effects
 * @returns {Span}
 */
export function reach(effects) {
  const minimal = Math.max(...effects.map((comparison) => comparison.minimal_effect), 0.001);
  const widest = Math.max(
    ...effects.flatMap((comparison) => [
      Math.abs(comparison.effect.lower ?? 0),
      Math.abs(comparison.effect.upper ?? 0),
      1.5 * comparison.minimal_effect,
    ]),
    0,
  );
  const farthest = Math.max(...effects.map((comparison) => Math.abs(comparison.effect.estimate ?? 0)), 0);
  const high = rounded(
    Math.max(Math.min(widest * 1.05, Math.max(CLIPPED * 4 * minimal, 0.25)), farthest * 1.05) || 0.1,
  );
  return { low: Math.max(-high, LEAST), high };
}

/**
 * The ends of a chart's axis: all estimates, the minimal effect, and the intervals but the first and widest ones.
 *
 * @param {Effect[]} effects
 * @param {number} minimal
 * @param {Scale} scale
 * @returns {Span}
 */
export function ends(effects, minimal, scale) {
  const later = effects.slice(Math.floor(effects.length / 6));
  const shown = [
    -1.4 * minimal,
    1.4 * minimal,
    ...effects.map((effect) => effect.estimate),
    ...later.flatMap((effect) => [effect.lower, effect.upper]),
  ].filter((bound) => bound !== null);
  const low = -rounded(-1.05 * Math.min(...shown)),
    high = rounded(1.05 * Math.max(...shown));
  return { low: scale === "relative" ? Math.max(low, LEAST) : low, high };
}

/**
 * The next larger number whose half is round, too: the axis has five labels.
 *
 * @param {number} value
 * @returns {number}
 */
export function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return Number(((ROUND.find((number) => number * power >= value * 0.9999) ?? 10) * power).toPrecision(2));
}

/**
 * @param {number} value
 * @param {Span} span
 */
const place = (value, { low, high }) => Math.min(100, Math.max(0, (100 * (value - low)) / (high - low)));

/**
 * `words`: whether to describe it to screen readers; not needed where the words are next to it.
 *
 * @param {Compared} comparison
 * @param {Span} span
 * @param {boolean} [words]
 */
export function interval(comparison, span, words = true) {
  const { lower, upper, estimate } = comparison.effect;
  const known = lower !== null && upper !== null && lower !== undefined && upper !== undefined;
  const left = known ? place(lower, span) : 0,
    right = known ? place(upper, span) : 0;
  return h(
    "div",
    { class: "interval" },
    h(
      "div",
      { class: "track", "aria-hidden": "true" },
      h("span", {
        class: "minimal",
        style: {
          left: `${place(-comparison.minimal_effect, span)}%`,
          right: `${100 - place(comparison.minimal_effect, span)}%`,
        },
      }),
      h("span", { class: "zero", style: { left: `${place(0, span)}%` } }),
      known
        ? h("span", {
            class: `sequence ${lower < span.low ? "cut-left" : ""} ${upper > span.high ? "cut-right" : ""}`,
            style: { left: `${left}%`, width: `${Math.max(right - left, 0.8)}%` },
          })
        : null,
      known && estimate !== null
        ? h("span", { class: "estimate", style: { left: `${place(estimate, span)}%` } })
        : null,
    ),
    words ? h("span", { class: "unseen" }, effectInWords(comparison)) : null,
  );
}

/**
 * @param {Span} span
 * @param {Scale} scale
 */
export function axis(span, scale) {
  const left = span.low === -span.high ? [span.low, span.low / 2] : place(0, span) > APART ? [span.low] : [];
  return h(
    "div",
    { class: "axis", "aria-hidden": "true" },
    [...left, 0, span.high / 2, span.high].map((value) =>
      h(
        "span",
        { style: { left: `${place(value, span)}%` } },
        scale === "relative" ? amount(Math.round(value * 1000) / 1000, scale) : amount(value, scale),
      ),
    ),
  );
}

const HEIGHT = 260;
const LABEL_TURNS = 0.6; // beyond this part of the plot, the verdict's label is on the left of its line

/** `points`: looks; `plans`: when the traffic changed (Unix seconds). Returns an element with `draw()` and `end()`. */
export function chart() {
  const place = h("div", {
    class: "plot",
    opaque: true,
    role: "slider",
    tabindex: "0",
    "aria-label": "The effect over time",
    on: { keydown: press, focus: () => goTo(current), blur: leave },
  });
  const words = h("p", { class: "hint small" });
  const readout = h("p", { class: "hint small readout", "aria-hidden": "true" });
  const latch = h("span", { class: "latched" }); // an element rather than ink: it has a label, and is above the band
  const probe = h("span", { hidden: true });
  const element = h("figure", { class: "chart", opaque: true }, place, h("figcaption", {}, readout, words), probe);
  /** @type {any} */
  let Plot = null;
  let ended = false;
  /** @type {any} */
  let plot = null;
  /** @type {[Comparison, Look[], number[]] | null} */
  let shown = null;
  /** @type {number[]} */
  let marks = [];
  let minimal = 0;
  let current = 0; // the look that arrow keys have moved to
  let axisEnds = { low: -0.1, high: 0.1 };

  /** @param {string} name */
  const color = (name) => {
    probe.style.color = `var(${name})`; // a custom property itself is not resolved: it may depend on the theme
    return getComputedStyle(probe).color;
  };
  const width = () => Math.max(240, Math.floor(place.clientWidth));
  const resize = new ResizeObserver(
    () => plot && plot.width !== width() && plot.setSize({ width: width(), height: HEIGHT }),
  );
  resize.observe(place);
  const schemes = ["(prefers-color-scheme: dark)", "(forced-colors: active)"].map((query) => matchMedia(query));
  const repaint = () => shown && Plot && build(...shown);
  plotter().then(
    (found) => {
      Plot = found;
      if (!ended) repaint();
    },
    (error) => (readout.textContent = error.message), // the words below the chart say the same
  );
  for (const scheme of schemes) scheme.addEventListener("change", repaint);
  document.addEventListener(CHANGED, repaint);

  /** @param {any} u */
  function underlay(u) {
    const { ctx } = u,
      { left, top, width: w, height: h_ } = u.bbox;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, w, h_);
    ctx.clip();
    ctx.fillStyle = color("--mei");
    const up = u.valToPos(minimal, "y", true),
      down = u.valToPos(-minimal, "y", true);
    ctx.fillRect(left, up, w, down - up);
    ctx.strokeStyle = color("--line-strong");
    ctx.lineWidth = devicePixelRatio;
    line(ctx, left, u.valToPos(0, "y", true), left + w, u.valToPos(0, "y", true));
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const at of marks) {
      const x = u.valToPos(at, "x", true);
      if (x >= left && x <= left + w) line(ctx, x, top, x, top + h_);
    }
    ctx.restore();
  }

  /**
   * Moves the verdict's line to its time. uPlot calls this whenever it draws.
   *
   * @param {any} u
   */
  function placeLatch(u) {
    if (shown === null) return;
    const { since, verdict, doubt } = shown[0];
    const part = since && !doubt ? (since - u.scales.x.min) / (u.scales.x.max - u.scales.x.min) : -1;
    latch.hidden = !(part >= 0 && part <= 1);
    latch.style.setProperty("left", `${100 * part}%`);
    latch.classList.toggle("label-left", part > LABEL_TURNS);
    latch.textContent = verdictInWords(verdict);
    if (latch.parentElement !== u.over) u.over.append(latch);
  }

  /** @param {any} u */
  function point({ cursor: { idx } }) {
    if (typeof idx === "number") current = idx;
    readout.textContent = typeof idx === "number" ? reading(idx) : "";
  }

  /** @param {number} index */
  function reading(index) {
    if (shown === null) return "";
    const [comparison, points] = shown;
    const point = points[index];
    return point
      ? `${moment(point.at)}: ${amount(point.effect.estimate, comparison.scale)}, ${between(point, comparison)}`
      : "";
  }

  /** @param {number} index */
  function move(index) {
    const last = (shown?.[1].length ?? 1) - 1;
    current = Math.min(index, last);
    const values = { valuemin: "0", valuemax: String(last), valuenow: String(current), valuetext: reading(current) };
    for (const [name, value] of Object.entries(values)) place.setAttribute(`aria-${name}`, value);
  }

  /** @param {number} index */
  function goTo(index) {
    const look = shown?.[1][index];
    if (look && plot) plot.setCursor({ left: plot.valToPos(look.at, "x"), top: 0 });
    move(index); // of looks on one pixel, the cursor knows only one
    readout.textContent = reading(current);
  }

  function leave() {
    plot?.setCursor({ left: -10, top: -10 });
    readout.textContent = "";
  }

  /** @param {KeyboardEvent} event */
  function press(event) {
    const index = pointAt(event.key, current, shown?.[1].length ?? 0);
    if (index !== null) {
      event.preventDefault(); // the page does not scroll
      goTo(index);
    } else if (event.key === "Escape") leave();
  }

  /**
   * @param {Comparison} comparison
   * @param {Look[]} points
   * @param {number[]} plans
   */
  function build(comparison, points, plans) {
    plot?.destroy();
    place.replaceChildren();
    minimal = comparison.minimal_effect;
    axisEnds = endsOf(comparison, points);
    marks = plans;
    const axis = {
      stroke: color("--text-2"),
      grid: { stroke: color("--line"), width: 1 },
      ticks: { stroke: color("--line") },
      font: "12px system-ui, sans-serif",
    };
    /** @type {(plot: unknown, values: number[]) => string[]} */
    const inAmounts = (_, values) => values.map((value) => amount(value, comparison.scale));
    const bound = { width: 1, stroke: color("--accent"), points: { show: false } };
    plot = new Plot(
      {
        width: width(),
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false } },
        scales: { x: { time: true }, y: { range: () => [axisEnds.low, axisEnds.high] } },
        axes: [
          {
            ...axis,
            size: 46,
            space: 70,
            values: (/** @type {any} */ _, /** @type {number[]} */ times) => ticks(times),
          },
          { ...axis, size: 68, values: inAmounts },
        ],
        series: [
          {},
          { ...bound, label: "upper" },
          { ...bound, label: "lower" },
          { label: "estimate", width: 2, stroke: color("--accent"), points: { show: points.length < 3 } },
        ],
        bands: [{ series: [1, 2], fill: color("--band") }],
        hooks: { drawClear: [underlay], draw: [placeLatch], setCursor: [point] },
      },
      data(points),
      place,
    );
  }

  return {
    element,
    /**
     * Draws what has changed. Without any look, the words say so.
     *
     * @param {Comparison} comparison
     * @param {Look[]} points
     * @param {number[]} plans
     */
    draw(comparison, points, plans) {
      const usable = points.filter((point) => point.effect.lower !== null && point.effect.upper !== null);
      words.textContent = inWords(comparison, usable, plans);
      place.hidden = usable.length === 0;
      const [before, drawn, marked] = shown ?? [];
      const isSame = before?.metric === comparison.metric && before.treatment === comparison.treatment;
      const isOld =
        isSame &&
        before.since === comparison.since &&
        drawn?.length === usable.length &&
        drawn.at(-1)?.at === usable.at(-1)?.at &&
        String(marked) === String(plans);
      if (usable.length === 0 || (isOld && plot)) return;
      const again = isSame && plot !== null;
      shown = [comparison, usable, plans];
      if (document.activeElement !== place) move(usable.length - 1);
      if (Plot === null) return;
      if (!again) build(...shown);
      else {
        marks = plans;
        axisEnds = endsOf(comparison, usable);
        plot.setData(data(usable));
      }
    },
    end() {
      ended = true;
      resize.disconnect();
      for (const scheme of schemes) scheme.removeEventListener("change", repaint);
      document.removeEventListener(CHANGED, repaint);
      plot?.destroy();
    },
  };
}

/** @param {Look[]} points */
function data(points) {
  return [
    points.map((point) => point.at),
    points.map((point) => point.effect.upper),
    points.map((point) => point.effect.lower),
    points.map((point) => point.effect.estimate),
  ];
}

/**
 * @param {Comparison} comparison
 * @param {Look[]} points
 */
function endsOf({ minimal_effect: minimal, scale }, points) {
  return ends(
    points.map((point) => point.effect),
    minimal,
    scale,
  );
}

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {number} x1
 * @param {number} y1
 * @param {number} x2
 * @param {number} y2
 */
function line(ctx, x1, y1, x2, y2) {
  ctx.beginPath();
  ctx.moveTo(x1, y1);
  ctx.lineTo(x2, y2);
  ctx.stroke();
}

/**
 * @param {Comparison} comparison
 * @param {Look[]} points
 * @param {number[]} plans
 */
function inWords(comparison, points, plans) {
  const [first, last] = [points[0], points.at(-1)];
  if (first === undefined || last === undefined) return "There is no interval yet.";
  const within = plans.filter((at) => at >= first.at && at <= last.at).length;
  const { since, doubt, verdict } = comparison;
  const isDrawn = since !== null && since >= first.at && since <= last.at;
  return [
    `${points.length} looks from ${moment(first.at)} to ${moment(last.at)}.`,
    `It started ${between(first, comparison)}, and is now ${effectInWords({ ...comparison, effect: last.effect })}.`,
    within > 0 && `The traffic changed ${count(within, "time", "times")} (dashed lines).`,
    since &&
      !doubt &&
      `The verdict “${verdictInWords(verdict)}” has held since ${moment(since)}${isDrawn ? " (solid line)" : ""}.`,
  ]
    .filter(Boolean)
    .join(" ");
}

/**
 * @param {{effect: Effect}} look
 * @param {Comparison} comparison
 */
function between({ effect }, { scale }) {
  return `between ${amount(effect.lower, scale)} and ${amount(effect.upper, scale)}`;
}

// --- uPlot, loaded with the first chart: only one page needs it, and no other should wait for it ---

/** @type {Promise<any> | null} */
let loaded = null;

/** Resolves to uPlot's class. Rejects if its file cannot be fetched; the next call tries again. */
function plotter() {
  speakPlainly();
  loaded ??= Promise.all([
    element("link", { rel: "stylesheet", href: "/ui/static/uPlot.min.css" }),
    element("script", { src: "/ui/static/uPlot.iife.js" }),
  ]).then(
    () => /** @type {any} */ (globalThis).uPlot,
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

/**
 * @param {string} tag
 * @param {Record<string, string>} attributes
 */
function element(tag, attributes) {
  return new Promise((resolve, reject) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.addEventListener("load", resolve);
    made.addEventListener("error", () => (made.remove(), reject(new Error("The chart's script cannot be loaded"))));
    document.head.append(made);
  });
}
