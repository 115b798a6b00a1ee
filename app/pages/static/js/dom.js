// Elements from values. Text is set as text, never as markup: model names and answers are untrusted.

const SVG = "http://www.w3.org/2000/svg";
const listeners = new WeakMap(); // element -> {type: handler}
const keys = new WeakMap(); // element -> its identity among its siblings
const standIns = new WeakMap(); // a comment -> the opaque element whose place it keeps in a new tree
const MOVED = new Set(["aria-valuenow", "aria-valuetext"]);
const AS_PROPERTY = new Set(["value", "checked", "disabled", "open", "selected", "indeterminate", "hidden"]);

/**
 * An element. Props: `class`, `style` (an object of CSS properties), `on` (an object of handlers), `key` (its
 * identity among its siblings, for `morph`), `opaque` (`morph` leaves its children alone), and attributes; null and
 * false are left out. Children: nodes, strings, numbers and arrays of them; null and false are left out.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props} props
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, props, ...children) {
  return build(document.createElement(tag), props, children);
}

/**
 * The same for SVG.
 *
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props} props
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, props, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

/**
 * @template {HTMLElement | SVGElement} Built
 * @param {Built} element
 * @param {Props} props
 * @param {readonly Child[]} children
 * @returns {Built}
 */
function build(element, props, children) {
  for (const [name, value] of Object.entries(props)) set(element, name, value);
  element.append(...flat(children).map(placeholder));
  // A select's value can only be set once its options exist.
  if (element instanceof HTMLSelectElement && "value" in props) element.value = String(props.value);
  return element;
}

/**
 * An opaque element on the page stays there: the new tree gets a comment in its place, which `morph` resolves.
 *
 * @param {Leaf} child
 * @returns {Node | string}
 */
function placeholder(child) {
  if (!(child instanceof Node)) return String(child);
  if (!child.isConnected || !isOpaque(child)) return child;
  const comment = document.createComment("");
  standIns.set(comment, child);
  return comment;
}

/** @param {Node} node */
function isOpaque(node) {
  return node instanceof Element && node.hasAttribute("data-opaque");
}

/**
 * @param {any} element
 * @param {string} name
 * @param {any} value
 */
function set(element, name, value) {
  if (name === "on") for (const [type, handler] of Object.entries(value)) listen(element, type, handler);
  else if (name === "key") keys.set(element, String(value));
  else if (name === "opaque") element.toggleAttribute("data-opaque", Boolean(value));
  else if (name === "style")
    for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
  else if (AS_PROPERTY.has(name)) {
    element[name] = value ?? "";
    if (name === "value") element.setAttribute("data-controlled", "");
  } else if (value !== null && value !== undefined && value !== false)
    element.setAttribute(name, value === true ? "" : value);
}

/**
 * @param {Element} element
 * @param {string} type
 * @param {(event: Event) => unknown} handler
 */
function listen(element, type, handler) {
  let known = listeners.get(element);
  if (!known) listeners.set(element, (known = {}));
  if (!(type in known)) element.addEventListener(type, (event) => listeners.get(element)[type]?.(event));
  known[type] = handler;
}

/**
 * @param {readonly Child[]} children
 * @returns {Leaf[]}
 */
function flat(children) {
  const leaves = /** @type {Leaf[]} */ (children.flat(/** @type {20} */ (Infinity)));
  return leaves.filter((leaf) => leaf !== null && leaf !== undefined && leaf !== false);
}

/**
 * The element below `root` that must be there.
 *
 * @param {ParentNode} root
 * @param {string} selector
 * @returns {HTMLElement}
 */
export function find(root, selector) {
  const element = root.querySelector(selector);
  if (element instanceof HTMLElement) return element;
  throw new Error(`The page lacks ${selector}`);
}

// Why no library: morphdom 2.7.8 takes 12 KB minified, this file 8 KB as it is. It leaves the old element's listeners
// as they are, sets `style` as an attribute, which the page's policy refuses, and moves an element with a key to its
// place, where it loses its focus.

/**
 * Gives `root` these children, but keeps elements with the same identity, so that focus, selection and scroll position
 * survive a redraw. Keys tell siblings apart: the same name may be a table's row and a form's slider.
 *
 * @param {Node} root
 * @param {...Child} children
 */
export function morph(root, ...children) {
  const wanted = flat(children).map((leaf) =>
    leaf instanceof Node ? (standIns.get(leaf) ?? leaf) : document.createTextNode(String(leaf)),
  );
  const named = new Set(wanted.filter((node) => keys.has(node)).map((node) => keys.get(node)));
  const keyed = new Map();
  for (const child of [...root.childNodes]) {
    if (!keys.has(child)) continue;
    if (named.has(keys.get(child))) keyed.set(keys.get(child), child);
    else child.remove();
  }
  let at = root.firstChild;
  const next = () => (at = at && at.nextSibling);
  for (const child of wanted) {
    const isKeyed = keys.has(child);
    const old = isKeyed ? keyed.get(keys.get(child)) : at && !keys.has(at) ? at : undefined;
    if (isKeyed && old) {
      // Remove the elements before it instead of moving it: a moved element loses its focus.
      while (at && at !== old && !keys.has(at)) {
        const gone = at;
        next();
        gone.remove();
      }
    }
    if (!old || !alike(old, child)) {
      if (old && isKeyed) {
        if (old === at) next();
        old.remove();
      }
      if (child === at) next();
      else root.insertBefore(child, at);
      continue;
    }
    if (old === at) next();
    else root.insertBefore(old, at);
    update(old, child);
  }
  while (at) {
    const gone = at;
    next();
    gone.remove();
  }
}

/**
 * @param {Node} old
 * @param {Node} child
 */
function alike(old, child) {
  if (old === child) return true;
  if (isOpaque(old) || isOpaque(child)) return false; // an opaque element is equal to itself only
  return old.nodeType === child.nodeType && old.nodeName === child.nodeName;
}

/**
 * @param {any} old
 * @param {any} child
 */
function update(old, child) {
  if (old === child) return;
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== child.data) old.data = child.data;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!child.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  const isMoved = old.getAttribute("role") === "slider" && old === document.activeElement;
  for (const { name, value } of child.attributes) {
    if (old.getAttribute(name) === value) continue;
    if (isMoved && MOVED.has(name)) continue; // a handler's: where the visitor has moved it
    if (name === "style")
      old.style.cssText = value; // the policy refuses the attribute
    else old.setAttribute(name, value);
  }
  const now = listeners.get(child) ?? {};
  for (const type of Object.keys(listeners.get(old) ?? {})) if (!(type in now)) listeners.get(old)[type] = undefined;
  for (const [type, handler] of Object.entries(now)) listen(old, type, handler);
  if (!child.hasAttribute("data-kept")) morph(old, ...child.childNodes); // else its content is a handler's
  if ("disabled" in child) old.disabled = child.disabled;
  if (child.hasAttribute("data-controlled") && old.value !== child.value) old.value = child.value;
  if (child.tagName === "INPUT" && old.checked !== child.checked && child.hasAttribute("data-controlled"))
    old.checked = child.checked;
}
