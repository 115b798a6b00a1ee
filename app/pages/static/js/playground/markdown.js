// Markdown on the page: markdown-it reads it, and its tokens become elements one by one. No markup is ever parsed: raw
// HTML stays text, links lead to http(s) only, and images, which would send a request, are links.

import MarkdownIt from "../../vendor/markdown-it.js";
import { h } from "../dom.js";
import { copyButton } from "../parts.js";

const parser = new MarkdownIt({ html: false, linkify: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });

const PLAIN = new Set(
  "p h1 h2 h3 h4 h5 h6 ul ol li blockquote table thead tbody tr th td em strong s hr br code".split(" "),
);
const LIST = new Set("ul ol li blockquote p table tbody tr td div pre code".split(" "));
const LINES = /(?:[^\n]*\n){1,32}|[^\n]+$/g;

/**
 * The blocks of a document, in order: each as a tree, with the line where it begins.
 *
 * @param {string} text
 * @returns {{tree: Tree, line: number}[]}
 */
export function blocks(text) {
  const found = [];
  let from = 0;
  const tokens = parser.parse(text, {});
  for (const [index, token] of tokens.entries())
    if (token.level === 0 && token.nesting !== 1) {
      const begun = tokens[from];
      found.push({ tree: trees(tokens.slice(from, index + 1))[0], line: begun.map?.[0] ?? 0 });
      from = index + 1;
    }
  return found;
}

/**
 * @param {import("../../vendor/markdown-it.js").Token[]} tokens
 * @returns {Tree[]}
 */
function trees(tokens) {
  /** @type {Tree[]} */
  const root = [];
  const open = [root];
  for (const token of tokens) {
    const here = open[open.length - 1];
    if (token.hidden) continue; // a paragraph of a tight list
    if (token.type === "inline") here.push(...trees(token.children ?? []));
    else if (token.nesting === -1) open.pop();
    else {
      const made = token.nesting === 1 ? element(token) : leaf(token);
      here.push(made);
      if (token.nesting === 1 && typeof made !== "string") open.push(made.children);
    }
  }
  return root;
}

/** @param {import("../../vendor/markdown-it.js").Token} token */
function element(token) {
  const tag = PLAIN.has(token.tag) ? token.tag : "span";
  if (token.type === "link_open") return link(token.attrGet("href"), []);
  const align = /^text-align:(center|right)$/.exec(token.attrGet("style") ?? "")?.[1];
  const start = token.attrGet("start");
  return node(tag, { ...(align ? { class: align } : {}), ...(start === null ? {} : { start: String(start) }) });
}

/**
 * @param {import("../../vendor/markdown-it.js").Token} token
 * @returns {Tree}
 */
function leaf(token) {
  switch (token.type) {
    case "softbreak":
      return "\n";
    case "fence":
    case "code_block":
      return node("pre", { language: token.info.trim().split(/\s/)[0] }, [token.content]);
    case "code_inline":
      return node("code", {}, [token.content]);
    case "image":
      return link(token.attrGet("src"), [token.content || "image"]);
    default:
      return PLAIN.has(token.tag) ? node(token.tag) : token.content;
  }
}

/**
 * @param {string | null} url
 * @param {Tree[]} children
 */
function link(url, children) {
  if (url === null || !/^https?:\/\//i.test(url)) return node("span", {}, children);
  return node("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, children);
}

/**
 * @param {string} tag
 * @param {Record<string, string>} [attributes]
 * @param {Tree[]} [children]
 */
function node(tag, attributes = {}, children = []) {
  return { tag, attributes, children };
}

const SMALL = 1024;
const GROWTH = 16;

/**
 * A document that grows at its end. Reads each block again while it may still change, and a long one only after it has
 * grown by a sixteenth: the characters that are read are a multiple of those that came, however long a block is.
 */
export class Growing {
  #tail = ""; // from the first block that may still change
  #added = "";
  #unread = 0;

  /** The characters that the parser has read so far. */
  read = 0;

  /** @param {string} text */
  add(text) {
    this.#added += text;
  }

  /**
   * What has changed since the last call; null: nothing. `done`: blocks that are complete; `open`: those after them,
   * which replace the last call's, or null if those stay; `rest`: text to append as it is, until it is read.
   *
   * @returns {{done: Tree[], open: Tree[] | null, rest: string} | null}
   */
  take() {
    const added = this.#added;
    if (added === "") return null;
    this.#added = "";
    this.#tail += added;
    this.#unread += added.length;
    if (this.#tail.length > SMALL && this.#unread * GROWTH < this.#tail.length)
      return { done: [], open: null, rest: added };
    this.#unread = 0;
    this.read += this.#tail.length;
    const found = blocks(this.#tail);
    const lines = [0, ...[...this.#tail.matchAll(/\r\n?|\n/g)].map(({ index, 0: end }) => index + end.length)];
    // A block ends where the next one begins, once that one's first two lines are whole: a table needs both.
    const last = found.findLastIndex(({ line }, index) => index > 0 && line + 2 < lines.length);
    const done = found.splice(0, Math.max(last, 0));
    if (done.length) this.#tail = this.#tail.slice(lines[found[0].line]);
    return { done: done.map(({ tree }) => tree), open: found.map(({ tree }) => tree), rest: "" };
  }
}

/** An answer's text while it grows, as Markdown. */
export class MarkdownView {
  #growing = new Growing();
  /** @type {Node[]} */
  #open = [];
  #announce;

  /** @param {Announce} announce */
  constructor(announce) {
    this.#announce = announce;
    this.element = h("div", { class: "markdown" });
  }

  /** @param {string} text */
  add(text) {
    this.#growing.add(text);
  }

  /** Shows what has been added. */
  draw() {
    const taken = this.#growing.take();
    if (taken === null) return;
    if (taken.open !== null) {
      for (const node of this.#open) if (node instanceof Element) node.remove();
      this.#open = this.#nodes(taken.open);
      this.element.append(...this.#nodes(taken.done), ...this.#open);
    }
    if (taken.rest) innermost(this.element).append(taken.rest);
  }

  /**
   * Shows the whole text: a link's address may stand below it.
   *
   * @param {string} text
   */
  end(text) {
    const whole = h("div", { class: "markdown" }, this.#nodes(blocks(text).map(({ tree }) => tree)));
    whole.normalize();
    this.element.normalize();
    if (!this.element.isEqualNode(whole)) this.element.replaceChildren(...whole.childNodes);
  }

  /** @param {Tree[]} trees */
  #nodes(trees) {
    return trees.map((tree) => built(tree, this.#announce));
  }
}

/** An answer's text as it is: of a completion, or of a JSON schema. */
export class PlainView {
  #added = "";
  element = h("div", { class: "plain" });

  /** @param {string} text */
  add(text) {
    this.#added += text;
  }

  draw() {
    if (this.#added) this.element.append(this.#added);
    this.#added = "";
  }

  /** @param {string} text */
  end(text) {
    this.element.textContent = text;
  }
}

/**
 * @param {Element} element
 * @returns {Element}
 */
function innermost(element) {
  const last = element.lastElementChild;
  return last && (LIST.has(last.localName) || last.className === "lines") ? innermost(last) : element;
}

/**
 * @param {Tree} tree
 * @param {Announce} announce
 * @returns {Node}
 */
function built(tree, announce) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const { tag, attributes } = tree;
  if (tag === "pre") return code(attributes.language, String(tree.children[0]), announce);
  // The page has h1, and an answer's name is an h2.
  const name = /^h\d$/.test(tag) ? `h${Math.min(Number(tag[1]) + 2, 6)}` : tag;
  const element = h(
    /** @type {"p"} */ (name),
    attributes,
    tree.children.map((child) => built(child, announce)),
  );
  if (tag !== "table") return element;
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" }, element);
}

/**
 * @param {string} language
 * @param {string} text
 * @param {Announce} announce
 */
function code(language, text, announce) {
  // In parts: a browser lays a long element out anew for each line that is added to it.
  const lines = text.match(LINES) ?? [];
  const shown = h(
    "code",
    {},
    lines.map((part) => h("span", { class: "lines" }, part)),
  );
  return h(
    "div",
    { class: "code" },
    h(
      "div",
      { class: "code-head" },
      h("span", {}, language),
      copyButton("Copy code", () => [shown.textContent ?? "", shown], announce),
    ),
    h("pre", { tabindex: 0, role: "group", "aria-label": language ? `Code: ${language}` : "Code" }, shown),
  );
}
