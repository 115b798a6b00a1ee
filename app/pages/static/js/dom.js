// Elements from values. Text is set as text, never as markup: model names and answers are untrusted.

const SVG = "http://www.w3.org/2000/svg";
const listeners = new WeakMap(); // element -> {type: handler}
const keys = new WeakMap(); // element -> its identity among its siblings
const standIns = new WeakMap(); // a comment -> the opaque element whose place it keeps in a new tree
const AS_PROPERTY = new Set(["value", "checked", "disabled", "open", "selected", "indeterminate", "hidden"]);

/**
 * An element. Props: `class`, `style` (an object of CSS properties), `on` (an object of handlers), `key` (its
 * identity among its siblings, for `morph`), `opaque` (`morph` leaves its children alone), and attributes; null and
 * false are left out. Children: nodes, strings, numbers and arrays of them; null and false are left out.
 */
export function h(tag, props, ...children) {
  return build(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function svg(tag, props, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

function build(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) set(element, name, value);
  element.append(...flat(children).map(placeholder));
  // A select's value can only be set once its options exist.
  if (props && "value" in props && element.tagName === "SELECT") element.value = props.value;
  return element;
}

/** An opaque element on the page stays there: the new tree gets a comment in its place, which `morph` resolves. */
function placeholder(child) {
  if (!(child instanceof Element && child.isConnected && child.hasAttribute("data-opaque"))) return child;
  const comment = document.createComment("");
  standIns.set(comment, child);
  return comment;
}

function set(element, name, value) {
  if (name === "on") for (const [type, handler] of Object.entries(value)) listen(element, type, handler);
  else if (name === "key") keys.set(element, String(value));
  else if (name === "opaque") element.toggleAttribute("data-opaque", Boolean(value));
  else if (name === "style")
    for (const [property, it] of Object.entries(value)) element.style.setProperty(property, it);
  else if (AS_PROPERTY.has(name)) {
    element[name] = value ?? "";
    if (name === "value") element.setAttribute("data-controlled", "");
  } else if (value !== null && value !== undefined && value !== false)
    element.setAttribute(name, value === true ? "" : value);
}

function listen(element, type, handler) {
  let known = listeners.get(element);
  if (!known) listeners.set(element, (known = {}));
  if (!(type in known)) element.addEventListener(type, (event) => listeners.get(element)[type]?.(event));
  known[type] = handler;
}

function flat(children) {
  return children.flat(Infinity).filter((it) => it !== null && it !== undefined && it !== false);
}

/**
 * Gives `root` these children, but keeps elements with the same identity, so that focus, selection and scroll position
 * survive a redraw.
 */
export function morph(root, ...children) {
  const wanted = flat(children).map((it) =>
    it instanceof Node ? (standIns.get(it) ?? it) : document.createTextNode(String(it)),
  );
  const named = new Set(wanted.filter((it) => keys.has(it)).map((it) => keys.get(it)));
  const keyed = new Map();
  for (const child of [...root.childNodes]) {
    if (!keys.has(child)) continue;
    if (named.has(keys.get(child))) keyed.set(keys.get(child), child);
    else child.remove();
  }
  let at = root.firstChild;
  const next = () => (at = at.nextSibling);
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

function alike(old, child) {
  if (old === child) return true;
  // An opaque element is equal to itself only.
  if (old.nodeType === Node.ELEMENT_NODE && (old.hasAttribute("data-opaque") || child.hasAttribute?.("data-opaque")))
    return false;
  return old.nodeType === child.nodeType && old.nodeName === child.nodeName;
}

function update(old, child) {
  if (old === child) return;
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== child.data) old.data = child.data;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!child.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of child.attributes) {
    if (old.getAttribute(name) === value) continue;
    if (name === "style")
      old.style.cssText = value; // the policy refuses the attribute
    else old.setAttribute(name, value);
  }
  const now = listeners.get(child) ?? {};
  for (const type of Object.keys(listeners.get(old) ?? {})) if (!(type in now)) listeners.get(old)[type] = undefined;
  for (const [type, handler] of Object.entries(now)) listen(old, type, handler);
  morph(old, ...child.childNodes);
  if ("disabled" in child) old.disabled = child.disabled;
  if (child.hasAttribute("data-controlled") && old.value !== child.value) old.value = child.value;
  if (child.tagName === "INPUT" && old.checked !== child.checked && child.hasAttribute("data-controlled"))
    old.checked = child.checked;
}
