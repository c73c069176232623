// Formulae are in the pages as text; KaTeX, which lies beside them, sets them. Without a script the text is shown.
document$.subscribe(() => {
  for (const place of document.querySelectorAll(".arithmatex")) {
    const text = place.textContent.trim();
    const isDisplay = text.startsWith("\\[");
    katex.render(text.slice(2, -2), place, { displayMode: isDisplay, throwOnError: false });
  }
});
