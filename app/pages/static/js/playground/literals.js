// Values as literals of a program: what was typed is data, and stays data.

// Invisible characters, and those that change the writing direction, are escaped.
const INVISIBLE = /(?! )[\p{C}\p{Z}]/gu;
const hex = (code, digits) => code.toString(16).padStart(digits, "0");
const utf16 = (character) =>
  [...Array(character.length).keys()].map((i) => `\\u${hex(character.charCodeAt(i), 4)}`).join("");

/** A JSON text, with escapes where characters need them. */
export function jsonText(value, indent = 0) {
  return JSON.stringify(value, null, indent).replace(INVISIBLE, (it) => (it === "\n" && indent ? it : utf16(it)));
}

/** A word of a POSIX shell. */
export function shellWord(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A string literal of Python: JSON's, but for characters beyond 16 bits. */
function pythonString(text) {
  return JSON.stringify(text).replace(INVISIBLE, (it) => {
    const code = it.codePointAt(0);
    return code > 0xffff ? `\\U${hex(code, 8)}` : `\\u${hex(code, 4)}`;
  });
}

/** Code that is put into a literal unchanged. */
export class Code {
  constructor(text) {
    this.text = text;
  }
}

/** `name(arguments)`: positional arguments first, then named ones. */
class Call extends Code {
  constructor(name, positional, named) {
    super("");
    Object.assign(this, { name, positional, named });
  }
}

const WIDTH = 88;

/** A literal of Python, over several lines where one is too long. */
export function python(value, indent = "") {
  const line = flat(value);
  if (indent.length + line.length <= WIDTH) return line;
  const inner = `${indent}    `;
  const lines = (open, items, close) => `${open}\n${items.map((it) => `${inner}${it},\n`).join("")}${indent}${close}`;
  if (value instanceof Call)
    return lines(
      `${value.name}(`,
      [...value.positional.map((it) => python(it, inner)), ...named(value.named, (it) => python(it, inner))],
      ")",
    );
  if (value instanceof Code) return value.text;
  if (Array.isArray(value))
    return value.length
      ? lines(
          "[",
          value.map((it) => python(it, inner)),
          "]",
        )
      : "[]";
  if (value !== null && typeof value === "object")
    return lines(
      "{",
      Object.entries(value).map(([key, it]) => `${pythonString(key)}: ${python(it, inner)}`),
      "}",
    );
  return line;
}

function flat(value) {
  if (value instanceof Call)
    return `${value.name}(${[...value.positional.map(flat), ...named(value.named, flat)].join(", ")})`;
  if (value instanceof Code) return value.text;
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return pythonString(value);
  if (Array.isArray(value)) return `[${value.map(flat).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([key, it]) => `${pythonString(key)}: ${flat(it)}`)
      .join(", ")}}`;
  return String(value);
}

function named(values, literal) {
  return Object.entries(values)
    .filter(([, it]) => it !== undefined)
    .map(([name, it]) => `${name}=${literal(it)}`);
}

/** `name(positional, named)` as a literal. */
export const call = (name, named, ...positional) => new Call(name, positional, named);
