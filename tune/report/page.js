(() => {
  const root = document.documentElement;
  const draw = () => {
    const style = getComputedStyle(root);
    const color = (key, value) => typeof value === "string" && value[0] === "@"
      && style.getPropertyValue("--" + value.slice(1)).trim() || value;
    for (const plot of document.querySelectorAll(".plot")) {
      const figure = JSON.parse(plot.nextElementSibling.textContent, color);
      Plotly.react(plot, figure.data, figure.layout, {displayModeBar: false, responsive: true});
    }
  };
  const print = on => { root.toggleAttribute("data-print", on); draw(); };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
})();
