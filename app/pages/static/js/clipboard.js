// Copies text, also without a clipboard: browsers offer one only over https and on the server's own machine.

/**
 * Copies `text`. Where the browser does not allow that, selects `shown`, the element that has the text. Resolves to the
 * button's new label, and announces the result.
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
