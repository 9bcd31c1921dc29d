// What a reader would complain about, measured on the page. An expression: () => a list of sentences, empty if all is well.
() => {
  const found = [];
  const say = (what, node) => found.push(node ? `${what}: ${describe(node)}` : what);

  for (const root of document.querySelectorAll(".attnwidget")) audit(root);
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) say(`the page scrolls sideways: ${scrollWidth} of ${clientWidth} px`);
  return found;

  function audit(root) {
    const mount = root.parentElement.getBoundingClientRect();
    const nodes = [...root.querySelectorAll("*")].filter(isVisible);

    for (const node of nodes) {
      const box = clipped(node, root);
      if (box === null) continue;
      if (box.right > mount.right + 0.6) say(`sticks out ${(box.right - mount.right).toFixed(1)} px on the right`, node);
      if (box.left < mount.left - 0.6) say(`sticks out ${(mount.left - box.left).toFixed(1)} px on the left`, node);
    }

    for (const node of nodes.filter(hasText)) {
      const style = getComputedStyle(node);
      const size = Number.parseFloat(style.fontSize);
      if (size < 8.99) say(`text of ${size} px`, node);
      if (!node.closest(":disabled")) {
        const ratio = contrast(style.color, backgroundOf(node));
        if (ratio < 4.495) say(`text contrast ${ratio.toFixed(2)}`, node);
      }
      const cut = node.scrollWidth > node.clientWidth + 1 && style.overflowX !== "visible" && style.display !== "inline";
      if (cut && style.textOverflow !== "ellipsis" && !node.matches(".aw-heads, .aw-popup")) say("text is cut off", node);
    }

    for (const node of nodes.filter((node) => node.matches("button, input, a, [role=application], [role=menu], [role=radiogroup]"))) {
      if (nameOf(node) === "") say("has no accessible name", node);
    }
    for (const node of nodes.filter((node) => node.matches("button, input"))) {
      if (node.matches(".aw-label")) continue; // as tall as its row at most
      const least = node.matches("button:is(.aw-toolbar *, [role=menuitemradio], .aw-actions *)") ? 24 : 22;
      if (heightOf(node) < least - 0.1) say(`a target of ${heightOf(node).toFixed(1)} px, ${least} wanted`, node);
    }
    for (const group of nodes.filter((node) => node.matches("[role=radiogroup], [role=tablist]"))) {
      const stops = [...group.querySelectorAll("[role=radio], [role=tab]")].filter((item) => item.tabIndex === 0);
      if (stops.length !== 1) say(`${stops.length} tab stops in one group`, group);
    }
    const ids = nodes.map((node) => node.id).filter(Boolean);
    if (new Set(ids).size < ids.length) say("an id is there twice", root);

    const [queries, keys] = [...root.querySelectorAll(".aw-labels")].map((axis) => [...axis.querySelectorAll(".aw-label:not([data-outside], [data-around])")]);
    for (const kind of ["outside", "around"]) stacked([...root.querySelectorAll(`.aw-labels:first-of-type .aw-label[data-${kind}]`)]);
    for (const ticks of [true, false]) if (queries) stacked(queries.filter((node) => node.matches("[data-tick]") === ticks));
    if (keys) slanted(keys);
    written([...root.querySelectorAll(".aw-graph-columns :is(.aw-label, .aw-graph-head, .aw-graph-row > span, .aw-prompt)")]);
    apart(root);
  }

  // Query labels stand one above the other: what is written must not touch; a pill must not touch what is written.
  function stacked(labels) {
    const boxes = labels.filter(isVisible).map((node) => {
      const box = node.getBoundingClientRect();
      const pill = node.matches(".aw-pill");
      const half = (pill ? box.height : capsOf(node)) / 2;
      const middle = (box.top + box.bottom) / 2;
      return { node, top: middle - half, bottom: middle + half };
    });
    boxes.sort((a, b) => a.top - b.top);
    for (let i = 1; i < boxes.length; i++) {
      const over = boxes[i - 1].bottom - boxes[i].top;
      if (over > 0.5) say(`query labels overlap by ${over.toFixed(1)} px, ${describe(boxes[i - 1].node)} and`, boxes[i].node);
    }
  }

  // Key labels are parallel lines at 45°, as far apart as their anchors · √½; ticks stand upright beside each other.
  function slanted(labels) {
    const ticks = labels.filter((node) => node.matches("[data-tick]"));
    const boxes = ticks.map((node) => node.getBoundingClientRect()).sort((a, b) => a.left - b.left);
    for (let i = 1; i < boxes.length; i++) {
      if (boxes[i].left < boxes[i - 1].right + 2) say("positions above the columns touch", ticks[i]);
    }
    const lines = labels
      .filter((node) => !node.matches("[data-tick]"))
      .map((node) => ({ node, at: Number.parseFloat(node.style.left), pill: node.matches(".aw-pill") }));
    lines.sort((a, b) => a.at - b.at);
    for (let i = 1; i < lines.length; i++) {
      const [before, after] = [lines[i - 1], lines[i]];
      const apart = after.at - before.at;
      if (apart < 11.9) say(`key labels ${apart.toFixed(1)} px apart, ${describe(before.node)} and`, after.node);
      const half = ({ node, pill }) => (pill ? node.offsetHeight : capsOf(node)) / 2;
      const over = half(before) + half(after) - apart * Math.SQRT1_2;
      if (over > 0.5) say(`key labels overlap by ${over.toFixed(1)} px, ${describe(before.node)} and`, after.node);
    }
  }

  // What is written in the graph's columns: no word over another, nor over the picture between them.
  function written(nodes) {
    const boxes = nodes.filter(isVisible).map((node) => {
      const { left, right, top, bottom } = node.getBoundingClientRect();
      const half = (node.matches(".aw-pill, .aw-pill-outline, .aw-prompt") ? bottom - top : capsOf(node)) / 2;
      return { node, left, right, top: (top + bottom) / 2 - half, bottom: (top + bottom) / 2 + half };
    });
    boxes.sort((a, b) => a.top - b.top);
    for (const [i, a] of boxes.entries()) {
      for (let j = i + 1; j < boxes.length && boxes[j].top < a.bottom - 0.5; j++) {
        const b = boxes[j];
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        if (across > 0.5) say(`written over one another by ${across.toFixed(1)} px, ${describe(a.node)} and`, b.node);
      }
    }
    const canvas = nodes[0]?.closest(".aw-graph-figure").querySelector("canvas").getBoundingClientRect();
    for (const { node, left, right, top, bottom } of boxes) {
      const over = bottom > canvas.top && top < canvas.bottom && left < canvas.right - 0.5 && right > canvas.left + 0.5;
      if (over) say("written over the bands", node);
    }
  }

  // The parts of the frame: none over another.
  function apart(root) {
    const parts = ["toolbar", "picker", "picture", "panel", "legend", "status"]
      .map((name) => ({ name, node: root.querySelector(`[data-aw=${name}]`) }))
      .filter(({ node }) => node && isVisible(node))
      .map(({ name, node }) => ({ name, box: node.getBoundingClientRect() }));
    for (const [i, a] of parts.entries()) {
      for (const b of parts.slice(i + 1)) {
        const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
        const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
        if (across > 0.5 && down > 0.5) say(`${a.name} and ${b.name} overlap by ${across.toFixed(0)} × ${down.toFixed(0)} px`);
      }
    }
  }

  function isVisible(node) {
    if (node.closest("[hidden], .aw-visually-hidden")) return false;
    const box = node.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && getComputedStyle(node).visibility !== "hidden";
  }

  function hasText(node) {
    return [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim() !== "");
  }

  /** What is to be seen of an element, or null. */
  function clipped(node, root) {
    const box = node.getBoundingClientRect();
    let [left, right] = [box.left, box.right];
    for (let at = node.parentElement; at && at !== root.parentElement; at = at.parentElement) {
      if (getComputedStyle(at).overflowX === "visible") continue;
      const around = at.getBoundingClientRect();
      const margin = Number.parseFloat(getComputedStyle(at).overflowClipMargin) || 0;
      [left, right] = [Math.max(left, around.left - margin), Math.min(right, around.right + margin)];
    }
    return left < right ? { left, right } : null;
  }

  function nameOf(node) {
    const labeled = node.getAttribute("aria-label") ?? node.getAttribute("title") ?? "";
    return (labeled.trim() || (node.matches("input, [role=application]") ? "" : node.textContent.trim())).trim();
  }

  /** With what enlarges it: a pseudo-element that reaches beyond it. */
  function heightOf(node) {
    const before = getComputedStyle(node, "::before");
    const more = before.content !== "none" && before.position === "absolute" ? -2 * Number.parseFloat(before.top) : 0;
    return node.getBoundingClientRect().height + (more > 0 ? more : 0);
  }

  /** From the tops of the capitals to the base line: what the eye sees of a line. */
  function capsOf(node) {
    return 0.73 * Number.parseFloat(getComputedStyle(node).fontSize);
  }

  function backgroundOf(node) {
    for (let at = node; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] > 0.5) return getComputedStyle(at).backgroundColor;
    }
    return "rgb(255, 255, 255)";
  }

  function rgba(css) {
    const [r, g, b, a = 1] = css.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  }

  function contrast(one, other) {
    const light = (css) => {
      const [r, g, b] = rgba(css).map((channel) => {
        const share = channel / 255;
        return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }

  function describe(node) {
    const text = node.textContent.trim().slice(0, 24);
    const name = node.getAttribute("class") ?? node.dataset?.aw ?? "";
    return `<${node.localName} ${name}> in ${node.closest("[data-aw]")?.dataset.aw ?? "?"} "${text}"`;
  }
}
