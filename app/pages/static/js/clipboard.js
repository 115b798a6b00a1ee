// Copying text, also where the browser offers no clipboard: it does so over https and on the server's own machine only.

/**
 * Copies `text`. Where the browser does not allow that, it selects `shown`, the element that has the text. Resolves to
 * what a button says about it, and announces the same in a sentence.
 */
export async function copy(text, shown, announce) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied");
    return "Copied";
  } catch {
    getSelection().selectAllChildren(shown);
    announce("The browser does not allow copying. The text is selected: copy it with the keyboard.");
    return "Selected: press Ctrl+C";
  }
}
