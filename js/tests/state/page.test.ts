// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { browser, frontEnd, tellPage } from "../../src/state/page";
import { createRecovery } from "../../src/state/recovery";

afterEach(() => {
  document.body.replaceChildren();
  delete document.body.dataset.vscodeThemeKind;
});

describe("the program whose page it is", () => {
  it("is named by Jupyter's own configuration", () => {
    document.body.innerHTML =
      '<script type="application/json" id="jupyter-config-data">{"appName": "JupyterLab", "appVersion": "4.6.6"}</script>';
    expect(frontEnd()).toBe("JupyterLab 4.6.6");
  });

  it("is known by what only its pages have", () => {
    document.body.dataset.vscodeThemeKind = "vscode-dark";
    expect(frontEnd()).toBe("VS Code");
  });

  it.each(["", "{", '"x"', '{"baseUrl": "/"}'])("is not invented where the page does not tell: %s", (text) => {
    document.body.innerHTML = `<script type="application/json" id="jupyter-config-data">${text}</script>`;
    expect(frontEnd()).toBe(text.includes("baseUrl") ? "a page of Jupyter" : "a page of its own");
  });
});

it.each([
  ["Mozilla/5.0 (X11) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36", "Chrome 140.0.0.0"],
  ["Mozilla/5.0 (X11; rv:128.0) Gecko/20100101 Firefox/128.0", "Firefox 128.0"],
  ["Mozilla/5.0 (Macintosh) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.1 Safari/605.1.15", "Safari 18.1"],
  ["something else", "something else"],
])("the browser of %s", (agent, name) => {
  expect(browser(agent)).toBe(name);
});

describe("what is told", () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it("comes after what is drawn, once, and with each failure", () => {
    const [tell, stop, recovery] = [vi.fn(), new AbortController(), createRecovery()];
    tellPage({ tell }, recovery, stop.signal);
    expect(tell).not.toHaveBeenCalled();
    vi.advanceTimersByTime(5000);
    expect(tell.mock.calls.map(([content]) => Object.keys(content.page))).toEqual([["front_end", "browser"]]);
    recovery.failed(new Error("no such cell"));
    expect(tell.mock.lastCall?.[0].page.error).toBe("no such cell");
  });

  it("ends with the widget", () => {
    const [tell, stop, recovery] = [vi.fn(), new AbortController(), createRecovery()];
    tellPage({ tell }, recovery, stop.signal);
    stop.abort();
    vi.advanceTimersByTime(5000);
    recovery.failed(new Error("late"));
    expect(tell).not.toHaveBeenCalled();
  });
});
