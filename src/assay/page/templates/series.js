"use strict";

/* A chart in place of the picture of a series: values under the pointer, zoom, a strip to choose a range, and
   batches that open. Everything a pointer can do, the keyboard can. */
function seriesView(figure) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const chart = figure.querySelector(".chart"), n = data.batch.length;
  const room = data.known.length ? Math.max(1, 0.05 * n) : 0;  // for known batches, left of the first
  const first = data.batch[0] - 0.5 - 2 * room, last = data.batch[n - 1] + 0.5, least = Math.min(4, last - first);
  let at = n - 1, main, strip;

  const make = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text) made.textContent = text;
    return made;
  };
  const button = (name, action) => {
    const made = make("button", "", name);
    made.type = "button";
    made.addEventListener("click", action);
    return made;
  };
  const tools = make("div", "controls"), readout = make("output", "at");
  const box = make("div", "box"), below = make("div", "range");
  const out = button("Zoom out", () => zoom(2)), all = button("All batches", () => show(first, last));
  const earlier = button("Earlier", () => move(-0.5)), later = button("Later", () => move(0.5));
  const opens = button("Open the batch", () => open(at));
  tools.append(earlier, button("Zoom in", () => zoom(0.5)), out, later, all, opens, readout);
  tools.setAttribute("role", "group");
  tools.setAttribute("aria-label", "Batches that are shown");
  box.tabIndex = 0;
  box.setAttribute("role", "slider");
  box.setAttribute("aria-label", "Batch; arrow keys step, plus and minus zoom, Enter opens its images");
  box.setAttribute("aria-valuemin", data.batch[0]);
  box.setAttribute("aria-valuemax", data.batch[n - 1]);
  below.setAttribute("aria-hidden", "true");
  chart.append(tools, box, below);

  /* The range of batches that is shown, never less than a few and never beyond the ends. */
  function show(min, max) {
    const span = Math.min(last - first, Math.max(least, max - min)), middle = (min + max) / 2;
    const start = Math.min(Math.max(first, middle - span / 2), last - span);
    main.setScale("x", { min: start, max: start + span });
  }

  function zoom(factor) {
    const { min, max } = main.scales.x, x = data.batch[at];
    const middle = x > min && x < max ? x : (min + max) / 2, half = ((max - min) * factor) / 2;
    show(middle - half, middle + half);
  }

  function move(part) {
    const { min, max } = main.scales.x, by = (max - min) * part;
    show(min + by, max + by);
  }

  function read(place) {
    at = place;
    const kept = details(place) !== null;
    readout.textContent = data.words[place] + (kept ? "" : "; its images were not kept");
    opens.disabled = !kept;
    box.setAttribute("aria-valuenow", data.batch[place]);
    box.setAttribute("aria-valuetext", readout.textContent);
  }

  /* To a batch, by keyboard: the range follows. */
  function step(place) {
    read(Math.min(n - 1, Math.max(0, place)));
    const { min, max } = main.scales.x, x = data.batch[at];
    if (x < min || x > max) show(x - (max - min) / 2, x + (max - min) / 2);
    point();
  }

  function point() {
    const x = data.batch[at], y = data.shift[at];
    main.setCursor({ left: main.valToPos(x, "x"), top: main.valToPos(y, "y") }, false);
  }

  const details = (place) => document.getElementById(`${figure.dataset.key}-batch-${data.batch[place]}`);

  function open(place) {
    const found = details(place);
    if (found) unfold(found);
  }

  box.addEventListener("keydown", (event) => {
    const keys = {
      ArrowRight: () => step(at + 1), ArrowUp: () => step(at + 1),
      ArrowLeft: () => step(at - 1), ArrowDown: () => step(at - 1),
      PageUp: () => step(at + 10), PageDown: () => step(at - 10),
      Home: () => step(0), End: () => step(n - 1),
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), Escape: () => show(first, last),
      Enter: () => open(at), " ": () => open(at),
    };
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  box.addEventListener("focus", point);

  /* From 0, or from below the lowest: an excess over the noise floor can be negative. */
  const values = [0, ...data.shift, ...data.known, ...data.low, ...data.high, ...data.levels.map((each) => each.value)].map((each) => each ?? 0);
  const top = Math.max(...values), bottom = Math.min(...values), margin = 0.06 * (top - bottom);

  function draw() {
    const css = getComputedStyle(figure), colour = (name) => css.getPropertyValue(`--${name}`).trim();
    const [ink, muted, rule, calm, alarm, paper] = ["ink", "muted", "rule", "supports", "opposes", "paper"].map(colour);
    const font = `12px ${css.getPropertyValue("--sans")}`, range = main && { ...main.scales.x };
    const axis = { stroke: muted, font, labelFont: font, grid: { stroke: rule, width: 0.5 }, ticks: { stroke: rule, width: 0.5 } };
    const scales = { x: { time: false, range: (_, min, max) => [min, max] }, y: { range: () => [bottom && bottom - margin, top + margin] } };
    const whole = (_, splits) => splits.map((each) => (Number.isInteger(each) && each >= data.batch[0] ? String(each) : ""));
    const line = { stroke: calm, width: 1.5, points: { size: 6, fill: calm, stroke: calm, show: (u) => u.scales.x.max - u.scales.x.min < u.bbox.width / devicePixelRatio / 8 } };
    const ends = { stroke: "transparent", width: 0, points: { show: false } };

    /* What the picture has beside the line: known batches, alarms, limits. */
    function marks(u) {
      const { ctx, bbox } = u, one = devicePixelRatio, right = bbox.left + bbox.width;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.fillStyle = muted;
      data.known.forEach((shift, i) => {
        ctx.beginPath();
        ctx.arc(u.valToPos(first + room * (1 + 0.3 * ((i % 3) - 1)), "x", true), u.valToPos(shift, "y", true), 2 * one, 0, 7);
        ctx.fill();
      });
      ctx.fillStyle = alarm;
      data.alarm.forEach((raised, i) => {
        if (!raised) return;
        const x = u.valToPos(data.batch[i], "x", true), y = u.valToPos(data.shift[i], "y", true), half = 5.5 * one;
        ctx.beginPath();
        [[0, -half], [half, 0], [0, half], [-half, 0]].forEach(([dx, dy]) => ctx.lineTo(x + dx, y + dy));
        ctx.fill();
      });
      ctx.font = `${12 * one}px ${css.getPropertyValue("--sans")}`;
      if (data.known.length) {
        ctx.fillStyle = muted;
        ctx.textAlign = "center";
        ctx.fillText("known", u.valToPos(first + room, "x", true), bbox.top + bbox.height - 6 * one);
      }
      ctx.textAlign = "right";
      for (const { value, name, dashed } of data.levels) {
        const y = u.valToPos(value, "y", true);
        ctx.setLineDash(dashed ? [6 * one, 4 * one] : []);
        ctx.strokeStyle = ctx.fillStyle = ink;
        ctx.lineWidth = one;
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(right, y);
        ctx.stroke();
        ctx.setLineDash([]);
        ctx.strokeStyle = paper;
        ctx.lineWidth = 4 * one;
        ctx.strokeText(name, right - 4 * one, y - 5 * one);
        ctx.fillText(name, right - 4 * one, y - 5 * one);
      }
      ctx.restore();
    }

    /* The mark under the pointer, on the line alone. */
    const pointed = (_, place) => (place === 3 ? make("div", "mark") : null);

    let pressed = 0;
    if (main) [main, strip].forEach((each) => each.destroy());
    main = new uPlot({
      width: box.clientWidth, height: 320, legend: { show: false }, scales,
      padding: [8, 20, 0, 0], cursor: { y: false, points: { show: pointed, size: 14, width: 2, stroke: ink, fill: "transparent" }, drag: { x: true, y: false } },
      axes: [{ ...axis, label: "batch", size: 30, labelSize: 20, values: whole, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }, { ...axis, label: data.axis, size: 56 }],
      series: [{}, ends, ends, line],
      bands: [{ series: [1, 2], fill: calm + "26" }],
      hooks: {
        draw: [marks],
        setCursor: [(u) => { if (u.cursor.idx !== null && u.cursor.idx !== undefined) read(u.cursor.idx); }],
        setScale: [(u, key) => {
          if (key !== "x" || !strip) return;
          const { min, max } = u.scales.x, left = strip.valToPos(min, "x"), wide = strip.valToPos(max, "x") - left;
          strip.setSelect({ left, top: 0, width: wide, height: strip.over.clientHeight }, false);
          out.disabled = all.disabled = max - min >= last - first - 1e-6;
          earlier.disabled = min <= first + 1e-6;
          later.disabled = max >= last - 1e-6;
        }],
      },
    }, [data.batch, data.high, data.low, data.shift], box);
    main.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    main.over.addEventListener("click", (event) => { if (Math.abs(event.clientX - pressed) < 4) open(at); });
    main.over.addEventListener("dblclick", () => show(first, last));
    strip = new uPlot({
      width: box.clientWidth, height: 58, padding: [4, 20, 4, 0], legend: { show: false }, scales,
      cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      axes: [{ ...axis, show: false }, { ...axis, size: 56, label: " ", values: () => [], grid: { show: false }, ticks: { show: false } }],
      series: [{}, { stroke: muted, width: 1, points: { show: false } }],
      hooks: { setSelect: [(u) => { if (u.select.width > 3) show(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")); }] },
    }, [data.batch, data.shift], below);
    [main, strip].forEach((each) => each.setScale("x", { min: first, max: last }));
    if (range) show(range.min, range.max);
  }

  figure.querySelector(".still").hidden = true;
  chart.hidden = false;
  figure.querySelector(".live").hidden = false;
  draw();
  read(at);
  let width = box.clientWidth;
  window.addEventListener("resize", () => { if (box.clientWidth !== width && box.clientWidth) { width = box.clientWidth; draw(); } });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  /* Paper shows the picture. */
  window.addEventListener("beforeprint", () => { figure.querySelector(".still").hidden = false; chart.hidden = true; });
  window.addEventListener("afterprint", () => { figure.querySelector(".still").hidden = true; chart.hidden = false; });
}

document.querySelectorAll("figure.series").forEach(seriesView);
