// What a person would call broken: a text that covers another, something wider than the page, an empty panel. Labels
// inside a chart stand in `labels` of the chart, in its own pixels.
(() => {
  const problems = [], width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) problems.push(`the page is wider than ${width}: ${document.documentElement.scrollWidth}`);
  const seen = (e) => e.checkVisibility({ visibilityProperty: true }) && e.getClientRects().length > 0;
  const clipped = (e) => e.closest('.scroll, .skip, noscript, script, style');
  const boxes = [];
  for (const e of document.querySelectorAll('body *')) {
    if (!seen(e) || clipped(e)) continue;
    if (e.getBoundingClientRect().right > width + 1) problems.push(`${e.tagName} is wider than the page: ${e.textContent.slice(0, 40)}`);
    for (const node of e.childNodes) {
      if (node.nodeType !== Node.TEXT_NODE || !node.textContent.trim()) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      for (const r of range.getClientRects()) if (r.width > 1 && r.height > 1) boxes.push({ r, e, text: node.textContent.trim().slice(0, 40) });
    }
  }
  for (const canvas of document.querySelectorAll('canvas')) {
    if (!seen(canvas)) continue;
    const at = canvas.getBoundingClientRect(), chart = window.Chart && Chart.getChart(canvas);
    for (const l of chart?.labels ?? []) boxes.push({ r: { left: at.left + l.left, right: at.left + l.right, top: at.top + l.top, bottom: at.top + l.bottom }, e: canvas, text: l.text });
    const data = canvas.width && canvas.height ? new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer) : [];
    if (new Set(data).size < 3) problems.push(`nothing drawn in ${canvas.getAttribute('aria-label')}`);
  }
  const most = 2; // pixels: lines of text touch
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    const across = Math.min(a.r.right, b.r.right) - Math.max(a.r.left, b.r.left), down = Math.min(a.r.bottom, b.r.bottom) - Math.max(a.r.top, b.r.top);
    // Boxes of glyphs in neighbouring lines of one text overlap by the leading.
    const lines = a.e === b.e && a.e.tagName !== 'CANVAS' ? 6 : a.e.parentElement === b.e || b.e.parentElement === a.e || a.e.parentElement === b.e.parentElement ? 5 : most;
    if (across > most && down > lines) problems.push(`"${a.text}" covers "${b.text}" by ${across.toFixed(0)} x ${down.toFixed(0)}`);
  }));
  const hasContent = (e) => e.innerText.trim() !== '' || [...e.querySelectorAll('canvas')].some(seen);
  for (const heading of document.querySelectorAll('h2, h3, h4')) {
    if (!seen(heading)) continue;
    const panel = (heading.closest('summary, .title') ?? heading).parentElement;
    if (panel.tagName === 'DETAILS' && !panel.open) continue;
    const rest = [...panel.children].filter((e) => !e.contains(heading) && seen(e));
    if (!rest.some(hasContent)) problems.push(`empty panel: ${heading.textContent}`);
  }
  return [...new Set(problems)];
})()
