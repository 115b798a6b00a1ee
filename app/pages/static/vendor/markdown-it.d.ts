// What the console uses of markdown-it.

export interface Token {
  type: string;
  tag: string;
  nesting: -1 | 0 | 1;
  level: number;
  map: [number, number] | null;
  hidden: boolean;
  content: string;
  info: string;
  children: Token[] | null;
  attrGet(name: string): string | null;
}

export default class MarkdownIt {
  constructor(options: { html: boolean; linkify: boolean });
  linkify: { set(options: { fuzzyLink: boolean; fuzzyEmail: boolean }): void };
  parse(text: string, env: object): Token[];
}
