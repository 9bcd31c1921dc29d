// A poster becomes the page of the widget when it is clicked: a page with six of them opens as quickly as one with none.
// Each frame has the theme of the page around it, also when that is changed.
function theme() {
  const own = document.body.dataset.theme;
  if (own === "light" || own === "dark") return own;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

const addressed = (page) => `${page}#theme=${theme()}`;

document.addEventListener("click", (event) => {
  const poster = event.target.closest?.(".live-poster");
  if (!poster) return;
  const figure = poster.closest("figure.live");
  const frame = document.createElement("iframe");
  frame.src = addressed(figure.dataset.page);
  frame.title = poster.getAttribute("aria-label").replace("Open the live widget: ", "");
  poster.replaceWith(frame);
  frame.focus();
});

function follow() {
  for (const figure of document.querySelectorAll("figure.live")) {
    const frame = figure.querySelector("iframe");
    if (frame) frame.src = addressed(figure.dataset.page);
  }
}

// A frame is as tall as its page says: nothing lies below an inner scroll bar.
addEventListener("message", ({ source, data }) => {
  const height = data?.attnwidget?.height;
  if (!(height > 0)) return;
  for (const frame of document.querySelectorAll("figure.live iframe")) {
    if (frame.contentWindow === source) frame.style.height = `${height + 2}px`; // with its border
  }
});

document.addEventListener("DOMContentLoaded", () => {
  new MutationObserver(follow).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", follow);
});
