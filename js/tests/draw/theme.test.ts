// @vitest-environment jsdom
import { afterEach, describe, expect, test } from "vitest";
import { detectHost, detectTheme, watchTheme } from "../../src/draw/theme";
import { colorScheme, media } from "../helpers/setup.ts";

afterEach(() => {
  for (const target of [document.body, document.documentElement]) {
    for (const { name } of [...target.attributes]) target.removeAttribute(name);
  }
});

function widget(parent: Element | ShadowRoot = document.body): HTMLElement {
  const el = document.createElement("div");
  parent.append(el);
  return el;
}

describe("the host says", () => {
  test.each([
    ["vscode-dark", "dark"],
    ["vscode-light", "light"],
    ["vscode-high-contrast", "contrast"],
    ["vscode-high-contrast-light", "contrast-light"],
  ])("VS Code, %s: %s, whatever Jupyter's variables say there", (kind, theme) => {
    document.body.dataset.vscodeThemeKind = kind;
    document.body.dataset.jpThemeLight = theme.endsWith("light") ? "false" : "true";
    const el = widget();
    expect([detectHost(el), detectTheme(el)]).toEqual(["vscode", theme]);
  });

  test.each([
    ["true", "JupyterLab Light", "light"],
    ["false", "JupyterLab Dark", "dark"],
    ["false", "JupyterLab Dark High Contrast", "contrast"],
    ["true", "Some Light High Contrast", "contrast-light"],
  ])("JupyterLab, light %s, %s: %s", (light, name, theme) => {
    document.body.dataset.jpThemeLight = light;
    document.body.dataset.jpThemeName = name;
    const el = widget();
    expect([detectHost(el), detectTheme(el)]).toEqual(["jupyter", theme]);
  });

  test("marimo stays light under a dark system, also from inside its shadow root", () => {
    document.body.className = "light light-theme";
    colorScheme("dark");
    const el = widget(widget().attachShadow({ mode: "open" }));
    expect([detectHost(el), detectTheme(el)]).toEqual(["other", "light"]);
    document.body.className = "dark dark-theme";
    expect(detectTheme(el)).toBe("dark");
  });

  test("Colab's frame", () => {
    document.documentElement.setAttribute("theme", "dark");
    expect(detectTheme(widget())).toBe("dark");
  });
});

describe("the page says", () => {
  test.each([
    ["#111213", "dark"],
    ["rgb(31, 31, 31)", "dark"],
    ["#f6eee3", "light"],
    ["#808080", "light"],
  ])("on %s: %s, whatever the system prefers", (background, theme) => {
    colorScheme(theme === "dark" ? "light" : "dark");
    const outer = widget();
    outer.style.background = background;
    const inner = widget(outer);
    inner.style.background = "rgba(255, 0, 0, 0.2)";
    expect(detectTheme(widget(inner))).toBe(theme);
  });

  test("out of a shadow root, by what stands behind it", () => {
    const outer = widget();
    outer.style.background = "#111";
    expect(detectTheme(widget(outer.attachShadow({ mode: "open" })))).toBe("dark");
  });

  test("the widget's own background does not count", () => {
    document.body.style.background = "#fff";
    const el = widget();
    el.style.background = "#000";
    expect(detectTheme(el)).toBe("light");
  });

  test("an element that is not in the page yet goes by the page", () => {
    const el = document.createElement("div");
    document.body.style.background = "#111";
    expect(detectTheme(el)).toBe("dark");
    document.body.dataset.jpThemeLight = "true";
    expect([detectHost(el), detectTheme(el)]).toEqual(["jupyter", "light"]);
  });

  test("where nothing says anything, the system decides", () => {
    const el = widget();
    expect(detectTheme(el)).toBe("light");
    colorScheme("dark");
    expect(detectTheme(el)).toBe("dark");
  });
});

test("forced colors are high contrast, light or dark as the system's are", () => {
  document.body.dataset.jpThemeLight = "true";
  media("(forced-colors: active)", true);
  const el = widget();
  expect(detectTheme(el)).toBe("contrast-light");
  colorScheme("dark");
  expect(detectTheme(el)).toBe("contrast");
});

test.each(["light", "dark", "contrast"] as const)("the reader's own choice, %s, comes first", (choice) => {
  document.body.dataset.vscodeThemeKind = choice === "dark" ? "vscode-light" : "vscode-dark";
  expect(detectTheme(widget(), choice)).toBe(choice);
});

test("a change of the host's theme, of its variables or of the system is told, until the view goes", async () => {
  const controller = new AbortController();
  const el = widget();
  const seen: string[] = [];
  watchTheme(el, () => seen.push(detectTheme(el)), controller.signal);
  document.body.dataset.jpThemeLight = "false";
  await Promise.resolve();
  document.body.dataset.jpThemeLight = "true";
  await Promise.resolve();
  document.documentElement.style.setProperty("--vscode-editor-background", "#222");
  await Promise.resolve();
  delete document.body.dataset.jpThemeLight;
  await Promise.resolve();
  colorScheme("dark");
  expect(seen.filter((theme, index) => theme !== seen[index - 1])).toEqual(["dark", "light", "dark"]);
  expect(seen.length).toBeGreaterThanOrEqual(5);
  const before = seen.length;
  controller.abort();
  document.body.dataset.jpThemeLight = "true";
  colorScheme("light");
  await Promise.resolve();
  expect(seen).toHaveLength(before);
});
