// What is wrong with the page as it is shown now: a list of sentences. Evaluated by looking.py at each width.
async () => {
  const problems = [];
  const name = (element) => {
    const text = (element.innerText || element.alt || element.src || "").trim().replace(/\s+/g, " ").slice(0, 60);
    return `<${element.tagName.toLowerCase()}> ${JSON.stringify(text)}`;
  };
  const visible = (element) => element.getClientRects().length > 0;

  // An image that cannot be decoded is missing or broken, also where it would load late or is hidden in this scheme.
  for (const image of document.images) {
    image.loading = "eager";
    try { await image.decode(); } catch { problems.push(`missing image: ${image.getAttribute("src")}`); }
    if (visible(image) && !image.hasAttribute("alt")) problems.push(`image without alternative text: ${image.src}`);
  }

  // The page itself must not scroll sideways. What is wide scrolls in a box of its own.
  const root = document.documentElement;
  const scrolls = (element) => {
    for (let box = element; box && box !== document.body; box = box.parentElement) {
      if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(box).overflowX)) return true;
    }
    return false;
  };
  const main = document.querySelector("main") || document.body;
  const wide = [...main.querySelectorAll("*")].filter(
    (element) => visible(element) && element.getBoundingClientRect().right > root.clientWidth + 1 && !scrolls(element));
  if (root.scrollWidth > root.clientWidth || wide.length) {
    problems.push(`scrolls sideways (${root.scrollWidth} px): ${wide.slice(-1).map(name).join() || "?"}`);
  }

  // A word in a table stays whole, except after a hyphen or a slash.
  const lines = (node, start, end) => {
    const range = document.createRange();
    range.setStart(node, start);
    range.setEnd(node, end);
    return new Set([...range.getClientRects()].filter((box) => box.width > 0).map((box) => Math.round(box.top))).size;
  };
  for (const cell of main.querySelectorAll("article td, article th")) {
    if (!visible(cell) || cell.closest(".highlighttable")) continue;
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      for (const word of node.data.matchAll(/[^\s\/\u2010-\u2014-]+/g)) {
        if (lines(node, word.index, word.index + word[0].length) > 1) problems.push(`broken word in a table: ${word[0]}`);
      }
    }
  }

  // Text that is hardly told from what is behind it (WCAG 2: 4.5, and 3 for large text).
  const channels = (color) => (color.match(/[\d.]+/g) || []).map(Number);
  const behind = (element) => {
    for (let box = element; box; box = box.parentElement) {
      const color = channels(getComputedStyle(box).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  for (const element of main.querySelectorAll("article :is(h1, h2, h3, p, li, td, th, a, code, summary)")) {
    const style = getComputedStyle(element);
    const color = channels(style.color);
    if (!visible(element) || !element.innerText || !style.color.startsWith("rgb")) continue;
    const back = behind(element);
    const over = color.length > 3 ? color.slice(0, 3).map((c, i) => c * color[3] + back[i] * (1 - color[3])) : color;
    const [low, high] = [luminance(over), luminance(back)].sort((a, b) => a - b);
    const large = parseFloat(style.fontSize) >= 24;
    const ratio = (high + 0.05) / (low + 0.05);
    const link = element.matches(".headerlink, .headerlink *");
    if (!link && ratio < (large ? 3 : 4.5)) problems.push(`contrast of ${ratio.toFixed(1)}: ${name(element)}`);
  }
  return [...new Set(problems)];
}
