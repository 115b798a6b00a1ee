// An operation's line is a button: keyboards cannot reach the link that Swagger UI puts inside it.
/** @param {{React: any}} system */
const plainPaths = ({ React }) => ({
  wrapComponents: {
    DeepLink: (/** @type {unknown} */ Original) => (/** @type {{path: string, text: string}} */ props) =>
      props.path.includes("/") ? React.createElement("span", null, props.text) : React.createElement(Original, props),
  },
});
SwaggerUIBundle({
  url: document.currentScript?.dataset.document,
  plugins: [plainPaths],
  onComplete: () => document.getElementById("servers")?.setAttribute("aria-label", "Server"),
  dom_id: "#page",
  deepLinking: true,
  docExpansion: "none",
  validatorUrl: null,
});
