// What `make lint` checks in the console's scripts and in these.
import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  { rules: { eqeqeq: "error", "max-len": ["error", 120], "prefer-const": "error" } },
  { files: ["app/pages/**"], languageOptions: { globals: { ...globals.browser, SwaggerUIBundle: "readonly" } } },
  // Functions that run in a page are sent to the browser.
  { files: ["tests/node/**"], languageOptions: { globals: { ...globals.node, ...globals.browser } } },
];
