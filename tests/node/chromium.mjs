// The Chromium of the package @sparticuz/chromium, with the libraries that it brings: nothing of the system is needed
// but the C library.
import { existsSync } from "node:fs";
import { mkdtemp, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { inflate } from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const packed = fileURLToPath(new URL("../bin/", import.meta.resolve("@sparticuz/chromium")));
const modules = fileURLToPath(new URL("node_modules/", import.meta.url));
const unpacked = join(modules, ".chromium");

/** Unpacks the browser once (8 s). A run that is cut off leaves nothing that a later one would take for whole. */
export async function unpack() {
  if (existsSync(unpacked)) return;
  const folder = await mkdtemp(join(modules, ".chromium-"));
  process.env.TMPDIR = folder; // `inflate` writes to the folder for temporary files
  await Promise.all(["chromium.br", "al2023.tar.br", "fonts.tar.br"].map((name) => inflate(join(packed, name))));
  delete process.env.TMPDIR;
  await rename(folder, unpacked).catch(() => rm(folder, { recursive: true }));
}

/** A running browser. The package's own arguments are not used: they turn the same-origin policy off. */
export async function launch() {
  await unpack();
  const libraries = join(unpacked, "al2023", "lib");
  const env = { ...process.env, FONTCONFIG_PATH: join(unpacked, "fonts"), LD_LIBRARY_PATH: libraries };
  return puppeteer.launch({
    executablePath: join(unpacked, "chromium"),
    headless: "shell",
    pipe: true, // so the browser ends when this process does, however it does
    args: ["--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"],
    env,
  });
}
