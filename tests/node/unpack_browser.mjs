// Unpacks the Chromium of the tests, for those who drive it from another language.
import { unpack } from "./chromium.mjs";

await unpack();
console.log("null");
