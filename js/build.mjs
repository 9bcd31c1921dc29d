// Builds ../attnwidget/static: widget.js (the core of the script), parts.json (its other parts, each opened when a view
// needs it), widget.css, loader.js (what every widget carries), page.js (the script of saved files), the ramps that
// Python draws with, and the licenses of what is inside.
//
//   node build.mjs           once
//   node build.mjs --watch   again at each change of a source
//   node build.mjs --host    only dist/host.js, for the browser tests: src/kernel/host.ts as the global `attnwidgetHost`

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { basename, dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { deflateRawSync, gzipSync } from "node:zlib";
import * as esbuild from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const STATIC = join(HERE, "..", "attnwidget", "static");
const SOURCES = join(HERE, "src");
/** Jupyter sends the script with every kernel, and saves it with every notebook: its core, and all of it. */
const MOST_BYTES = 204_800;
const MOST_BYTES_IN_ALL = 327_680;

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

/** A script, deflated: how many bytes that has, and they as letters. Half the bytes. */
function packed(script) {
  const deflated = deflateRawSync(script, { level: 9 });
  return `${deflated.length}:${lettersOf(deflated)}`;
}

/** Where a page keeps the parts of the script, packed, by their names; a page may hold several versions. */
const onPage = () => `Symbol.for("attnwidget parts ${digest()}")`;

/**
 * The script as it is sent first: the core, behind a few lines that unpack it. However many widgets a page has, it is
 * unpacked and evaluated once. Any other part is unpacked and evaluated when the core first opens it; what it takes from
 * the core it imports from the core's own address, which is therefore kept.
 */
function scriptOf(core, start, first) {
  return `/* attnwidget, built from ${digest()} */
${first}export const { paintFirst } = attnwidgetFirst;
const numbers = new Uint8Array(127);
for (let code = 32, number = 0; code < 127; code++) if (![34, 58, 60, 92].includes(code)) numbers[code] = number++;
const bytesOf = (packed) => {
  const bytes = new Uint8Array(parseInt(packed));
  for (let at = packed.indexOf(":") + 1, held = 0, bits = 0, count = 0; at < packed.length; at += 2) {
    held |= (numbers[packed.charCodeAt(at)] + 91 * numbers[packed.charCodeAt(at + 1)]) << bits;
    for (bits += 13; bits > 7; bits -= 8, held >>>= 8) bytes[count++] = held;
  }
  return bytes;
};
const parts = (globalThis[${onPage()}] ??= {});
parts.core = "${core}";
let address;
const load = async (name) => {
  if (!(name in parts)) throw new Error("the script's part for it is not on this page");
  const script = new Blob([bytesOf(parts[name])]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  let blob = await new Response(script, { headers: { "content-type": "text/javascript" } }).blob();
  if (name !== "core") {
    const text = (await blob.text()).replace('"./core.js"', () => '"' + address + '"');
    blob = new Blob([text], { type: "text/javascript" });
  }
  const url = URL.createObjectURL(blob);
  if (name === "core") address = url;
  return import(/* webpackIgnore: true */ url).finally(() => name === "core" || URL.revokeObjectURL(url));
};
const loading = {};
parts.open ??= (name) => (loading[name] ??= load(name).catch((error) => {
  delete loading[name];
  throw error;
}));
export default async () => (await parts.open("core")).${start};
`;
}

/**
 * Cuts the script: each `import()` of a view is a part. The core is all that is needed from the start, and what two parts
 * share: each part imports all of that, so that esbuild puts it into one file and not into one for each pair of them.
 */
const cut = (shared) => ({
  name: "cut",
  setup(build) {
    const core = ["widget.ts", ...shared].map((name) => `import ${JSON.stringify(join(SOURCES, name))};`).join("");
    build.onResolve({ filter: /^core$/ }, ({ path }) => ({ path, namespace: "core" }));
    build.onLoad({ filter: /./, namespace: "core" }, () => ({
      contents: `${core}export { default } from "./widget.ts";`,
      resolveDir: SOURCES,
    }));
    build.onResolve(
      { filter: /^\.\.\/views\/\w+\/index$/ },
      async ({ kind, path, importer, resolveDir, pluginData }) => {
        if (kind !== "dynamic-import" || pluginData === "cut") return undefined;
        const found = await build.resolve(path, { kind, importer, resolveDir, pluginData: "cut" });
        return { path: found.path, namespace: "part" };
      },
    );
    build.onLoad({ filter: /./, namespace: "part" }, ({ path }) => ({
      contents: `import "core";export * from ${JSON.stringify(path)};`,
      resolveDir: SOURCES,
    }));
  },
});

/** The modules that several parts have and the core has not, as paths below js/src. */
async function sharedByParts() {
  const { metafile } = await esbuild.build({ ...script, plugins: [cut([])] });
  return Object.values(metafile.outputs)
    .filter(({ entryPoint, inputs }) => entryPoint === undefined && !("src/widget.ts" in inputs))
    .flatMap(({ inputs }) => Object.keys(inputs).map((name) => relative(SOURCES, join(HERE, name))));
}

/** The script in parts, by name: a view's is its folder in views/; and what the core calls the widget. */
async function inParts() {
  const { metafile, outputFiles } = await esbuild.build({ ...script, plugins: [cut(await sharedByParts())] });
  const files = new Map();
  const names = new Map();
  for (const [path, { entryPoint, inputs }] of Object.entries(metafile.outputs)) {
    const file = path.split("/").at(-1);
    const name =
      entryPoint === "core:core" ? "start" : "src/widget.ts" in inputs ? "core" : basename(dirname(entryPoint));
    names.set(file, name);
    files.set(name, outputFiles.find((output) => basename(output.path) === file).text);
  }
  const named = (text) =>
    text
      .replace(/import\("\.\/([\w-]+\.js)"\)/g, (_, file) => `globalThis[${onPage()}].open("${names.get(file)}")`)
      .replace(/"\.\/(chunk-\w+\.js)"/g, (_, file) => `"./${names.get(file)}.js"`);
  const start = /^import\{(\w+) as (\w+)\}from"[^"]+";export\{\2 as default\};/.exec(files.get("start"))[1];
  files.delete("start");
  const parts = Object.fromEntries([...files].map(([name, text]) => [name, packed(named(text))]));
  return { metafile, start, parts };
}

/** Checks the sizes of what esbuild has made, and puts it into attnwidget/static. */
const toStatic = {
  name: "to-static",
  setup(build) {
    build.onEnd(async ({ errors, outputFiles }) => {
      if (errors.length) return undefined;
      const { outputFiles: pages } = await esbuild.build(page);
      const { outputFiles: loaders } = await esbuild.build({ ...loader, define: { DIGEST: JSON.stringify(digest()) } });
      const { metafile, start, parts } = await inParts();
      const { core, ...others } = parts;
      const { outputFiles: firsts } = await esbuild.build(first);
      const script = scriptOf(core, start, firsts[0].text);
      const rest = JSON.stringify({ digest: digest(), parts: others });
      const style = outputFiles.find(({ path }) => path.endsWith(".css")).text;
      for (const [name, text] of Object.entries(others)) console.log(`${`  ${name}`.padEnd(12)}${size(text)}`);
      console.log(
        `widget.js   ${size(script)} (at most ${MOST_BYTES.toLocaleString("en")})\n` +
          `parts.json  ${size(rest)} (at most ${MOST_BYTES_IN_ALL.toLocaleString("en")} with widget.js)\n` +
          `widget.css  ${size(style)}\nloader.js   ${size(loaders[0].text)}\npage.js     ${size(pages[0].text)}`,
      );
      const tooLarge = (name, most) => {
        return { errors: [{ text: `${name} has more than ${most.toLocaleString("en")} bytes: nothing was written` }] };
      };
      if (Buffer.byteLength(script) > MOST_BYTES) return tooLarge("widget.js", MOST_BYTES);
      if (Buffer.byteLength(script + rest) > MOST_BYTES_IN_ALL)
        return tooLarge("widget.js with parts.json", MOST_BYTES_IN_ALL);
      write(join(STATIC, "THIRD-PARTY.txt"), licenses(metafile));
      for (const table of ["draw/ramps.json", "contract/names.json"]) {
        write(join(STATIC, basename(table)), readFileSync(join(SOURCES, table), "utf8"));
      }
      write(join(STATIC, "page.js"), pages[0].text);
      const { outputFiles: atlases } = await esbuild.build(atlas);
      for (const { path, text } of atlases) {
        const name = `atlas.${path.split(".").at(-1)}`;
        console.log(`${name.padEnd(12)}${size(text)}`);
        write(join(STATIC, name), text);
      }
      write(join(STATIC, "loader.js"), loaders[0].text);
      write(join(STATIC, "widget.css"), style);
      write(join(STATIC, "parts.json"), rest);
      write(join(STATIC, "widget.js"), script);
      return undefined;
    });
  },
};

/** Watched as a whole; what is written is cut into parts. */
const widget = {
  ...common,
  entryPoints: ["src/styles/widget.css", "src/widget.ts"],
  format: "esm",
  outdir: "out", // never written to
  plugins: [toStatic],
  write: false,
};

const script = {
  ...common,
  chunkNames: "chunk-[hash]",
  entryPoints: ["core"],
  format: "esm",
  metafile: true,
  outdir: "out",
  splitting: true,
  write: false,
};

/** What each widget carries; the rest is sent once. */
const loader = { ...common, entryPoints: ["src/loader.ts"], format: "esm", outdir: "out", write: false };

/** Stands before the packed core, to draw the first picture while that is unpacked. */
const first = {
  ...common,
  entryPoints: ["src/first.ts"],
  format: "iife",
  globalName: "attnwidgetFirst",
  outdir: "out",
  write: false,
};

/** Run by a page of its own, as no module: one that is opened from file:// may load none. */
const page = { ...common, entryPoints: ["src/export-page.ts"], format: "iife", outdir: "out", write: false };

/** An atlas, in a notebook and in pages: an IIFE, because a page from file:// may load no module. */
const atlas = {
  ...common,
  entryPoints: ["src/atlas.ts", "src/atlas/atlas.css"],
  format: "iife",
  globalName: "attnwidgetAtlas",
  outdir: "out",
  write: false,
};

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
} catch (error) {
  process.exitCode = 1; // esbuild has said why, where it is not what stands above
  for (const { pluginName, text } of error.errors ?? []) if (pluginName) console.error(text);
  if (!error.errors) throw error;
}
