/* The search of pages that were opened as files, without a server.

   Browsers refuse to start a worker from such a page, and the theme's search box is then missing.
   Here the worker's script runs in a hidden frame, whose `postMessage` answers the page. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      // A browser may replace the frame's first document, so the script waits for its event `load`.
      const loaded = new Promise((resolve) =>
        frame.addEventListener("load", resolve, { once: true }));
      this.started = loaded.then(() => new Promise((resolve) => {
        frame.contentWindow.postMessage = (data) =>
          this.dispatchEvent(new MessageEvent("message", { data }));
        const script = frame.contentDocument.createElement("script");
        script.addEventListener("load", () => resolve(frame.contentWindow));
        script.src = url;
        frame.contentDocument.body.append(script);
      }));
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.started.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
