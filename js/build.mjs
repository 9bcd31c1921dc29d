// Builds ../attnwidget/static: widget.js, widget.css, loader.js (what every widget carries), page.js (the script of saved files), the ramps that Python draws
// with, and the licenses of what is inside.
//
//   node build.mjs           once
//   node build.mjs --watch   again at each change of a source
//   node build.mjs --host    only dist/host.js, for the browser tests: src/kernel/host.ts as the global `attnwidgetHost`

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { deflateRawSync, gzipSync } from "node:zlib";
import * as esbuild from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const STATIC = join(HERE, "..", "attnwidget", "static");
/** Jupyter sends the bundle with every kernel, and saves it with every notebook. */
const MOST_BYTES = 204_800;

const common = {
  absWorkingDir: HERE,
  bundle: true,
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
  minify: true,
  target: "es2022",
};

/** The same name for the sources as tools/js.py computes: it tells a fresh bundle from a stale one. */
function digest() {
  const sources = readdirSync(join(HERE, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(HERE, join(entry.parentPath, entry.name)).split(sep).join("/"));
  sources.push("build.mjs", "package-lock.json");
  const total = createHash("sha256");
  for (const name of sources.sort()) {
    total
      .update(`${name}\0`)
      .update(readFileSync(join(HERE, name)))
      .update("\0");
  }
  return total.digest("hex").slice(0, 32);
}

/** The license texts that the packages inside the bundle ask to be kept with it. */
function licenses(metafile) {
  const packages = new Set();
  for (const input of Object.keys(metafile.inputs)) {
    const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (found) packages.add(found[1]);
  }
  const texts = [...packages].sort().map((name) => {
    const folder = join(HERE, "node_modules", name);
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    if (!file) throw new Error(`${name} has no license file: it cannot be bundled`);
    const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    return `${name} ${version}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
  });
  return `attnwidget's front-end contains these packages.\n\n${texts.join(`\n${"-".repeat(72)}\n\n`)}`;
}

function write(path, text) {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(`${path}.new`, text);
  renameSync(`${path}.new`, path); // a kernel that starts meanwhile reads the old or the new one, never half
}

const size = (text) => {
  const bytes = Buffer.byteLength(text);
  return `${bytes.toLocaleString("en")} bytes, ${gzipSync(text).length.toLocaleString("en")} gzipped`;
};

/** Bytes as text, two of 91 letters for 13 bits: shorter than base64 by a thirteenth. No letter is ", \\, < or :. */
function lettersOf(bytes) {
  const letters = Array.from({ length: 95 }, (_, at) => String.fromCharCode(32 + at)).filter(
    (one) => !'":<\\'.includes(one),
  );
  let [text, held, bits] = ["", 0, 0];
  const put = () => {
    const number = held & 8191;
    text += letters[number % 91] + letters[Math.floor(number / 91)];
    [held, bits] = [held >>> 13, bits - 13];
  };
  for (const byte of bytes) {
    held |= byte << bits;
    bits += 8;
    if (bits >= 13) put();
  }
  if (bits > 0) put();
  return text;
}

/**
 * The script as it is sent: deflated, behind a few lines that unpack it. Half the bytes, and however many widgets a page
 * has, it is unpacked and evaluated once.
 */
function packed(script, name) {
  const deflated = deflateRawSync(script, { level: 9 });
  return `/* attnwidget, built from ${name} */
const bytesOf = (text, size) => {
  const bytes = new Uint8Array(size);
  const number = (at, letter = text.charCodeAt(at)) =>
    letter - 32 - (letter > 34) - (letter > 58) - (letter > 60) - (letter > 92);
  for (let at = 0, held = 0, bits = 0, count = 0; at < text.length; at += 2) {
    held |= (number(at) + 91 * number(at + 1)) << bits;
    for (bits += 13; bits > 7; bits -= 8, held >>>= 8) bytes[count++] = held;
  }
  return bytes;
};
const load = async () => {
  const data = bytesOf("${lettersOf(deflated)}", ${deflated.length});
  const script = new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate-raw")));
  const url = URL.createObjectURL(new Blob([await script.text()], { type: "text/javascript" }));
  return import(/* webpackIgnore: true */ url).finally(() => URL.revokeObjectURL(url));
};
export default async () => (await (globalThis[Symbol.for("attnwidget ${name}")] ??= load())).default;
`;
}

/** Takes what esbuild has made, checks its size and puts it into attnwidget/static. */
const toStatic = {
  name: "to-static",
  setup(build) {
    build.onEnd(async ({ errors, metafile, outputFiles }) => {
      if (errors.length) return undefined;
      const { outputFiles: pages } = await esbuild.build(page);
      const { outputFiles: loaders } = await esbuild.build({ ...loader, define: { DIGEST: JSON.stringify(digest()) } });
      const output = (name) => outputFiles.find((file) => file.path.endsWith(name)).text;
      const script = packed(output("widget.js"), digest());
      const style = output("widget.css");
      console.log(
        `widget.js   ${size(script)} (at most ${MOST_BYTES.toLocaleString("en")})\nwidget.css  ${size(style)}\n` +
          `loader.js   ${size(loaders[0].text)}\npage.js     ${size(pages[0].text)}`,
      );
      if (Buffer.byteLength(script) > MOST_BYTES) {
        const text = `widget.js is larger than ${MOST_BYTES.toLocaleString("en")} bytes, and was not written`;
        return { errors: [{ text }] };
      }
      write(join(STATIC, "THIRD-PARTY.txt"), licenses(metafile));
      write(join(STATIC, "ramps.json"), readFileSync(join(HERE, "src", "draw", "ramps.json"), "utf8"));
      write(join(STATIC, "page.js"), pages[0].text);
      write(join(STATIC, "loader.js"), loaders[0].text);
      write(join(STATIC, "widget.css"), style);
      write(join(STATIC, "widget.js"), script);
      return undefined;
    });
  },
};

const widget = {
  ...common,
  entryPoints: ["src/widget.ts", "src/styles/widget.css"],
  format: "esm",
  metafile: true,
  outdir: "out", // never written to
  plugins: [toStatic],
  write: false,
};

/** What each widget carries; the rest is sent once. */
const loader = { ...common, entryPoints: ["src/loader.ts"], format: "esm", outdir: "out", write: false };

/** Run by a page of its own, as no module: one that is opened from file:// may load none. */
const page = { ...common, entryPoints: ["src/export-page.ts"], format: "iife", outdir: "out", write: false };

const host = {
  ...common,
  entryPoints: ["src/kernel/host.ts"],
  format: "iife", // so that a page opened from file:// can load it too
  globalName: "attnwidgetHost",
  outfile: "dist/host.js",
};

const flag = process.argv[2];
try {
  if (flag === "--watch") {
    const context = await esbuild.context(widget);
    await context.watch();
  } else if (flag === "--host") {
    if (existsSync(join(HERE, "src", "kernel", "host.ts"))) await esbuild.build(host);
  } else {
    await esbuild.build(widget);
  }
} catch {
  process.exitCode = 1; // esbuild has said why
}
