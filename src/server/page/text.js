/* Text of the model with the little markup that models write: fenced code, inline code, bold,
 * headings. Every node is made here and filled with textContent; nothing is ever parsed as HTML. */
"use strict";

const inline = /`([^`\n]+)`|\*\*([^*\n]+)\*\*/g;

function addInline(box, text) {
  let at = 0;
  for (const m of text.matchAll(inline)) {
    box.append(text.slice(at, m.index));
    box.append(make(m[1] !== undefined ? "code" : "strong", "", m[1] !== undefined ? m[1] : m[2]));
    at = m.index + m[0].length;
  }
  box.append(text.slice(at));
}

function addProse(box, lines) {
  while (lines.length && !lines[0].trim()) lines.shift();
  while (lines.length && !lines[lines.length - 1].trim()) lines.pop();
  lines.forEach((line, i) => {
    const heading = /^#{1,6} +(.*)$/.exec(line);
    if (i) box.append("\n");
    if (heading) box.append(make("strong", "heading", heading[1]));
    else addInline(box, line);
  });
}

/* The button says for a moment that it did it. */
function copyButton(what) {
  const b = make("button", "small", "Copy");
  b.type = "button";
  b.addEventListener("click", async () => {
    let done = "Copied";
    try { await navigator.clipboard.writeText(what()); } catch { done = "Not allowed here"; }
    b.textContent = done;
    setTimeout(() => { b.textContent = "Copy"; }, 1500);
  });
  return b;
}

function addCode(box, language, text) {
  const code = make("div", "code"), bar = make("div", "bar"), body = make("pre", "", text);
  bar.append(make("span", "", language || "code"), copyButton(() => text));
  body.tabIndex = 0; /* a long line can be scrolled without a mouse */
  code.append(bar, body);
  box.append(code);
}

/* Replaces what `box` holds. A fence that is still open goes to the end of the text. */
function showText(box, text) {
  let prose = [], code = null, language = "";
  box.replaceChildren();
  for (const line of text.split("\n")) {
    const fence = /^\s*```+\s*([\w+#.-]*)\s*$/.exec(line);
    if (!fence) {
      (code || prose).push(line);
    } else if (code) {
      addCode(box, language, code.join("\n"));
      code = null;
    } else {
      addProse(box, prose);
      prose = [];
      code = [];
      language = fence[1];
    }
  }
  if (code) addCode(box, language, code.join("\n"));
  else addProse(box, prose);
}
