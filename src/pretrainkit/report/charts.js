// Draws the curves of the page with uPlot, from the JSON that `charts.py` writes into #curves.
"use strict";
(() => {
  const NEAR = 40; // the tooltip shows values at most this many pixels away
  const state = { x: "step", log: false, raw: !document.querySelector("button[data-run]"), hidden: new Set(), zoom: new Map() };
  let plots = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  // Numbers for people.
  const UNITS = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
  function plain(value) {
    const size = Math.abs(value);
    if (size >= 1e6) {
      const [unit, letter] = UNITS.find(([least]) => size >= least);
      return size < 1e21 ? `${+(value / unit).toPrecision(4)}${letter}` : value.toExponential(2);
    }
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return value && size < 1e-3 ? scientific(value) : `${+value.toPrecision(4)}`;
  }
  const scientific = (value) => value.toExponential(2).replace(/\.?0+e/, "e");
  // Small ticks of one axis all have exponents, not only those below 0.001.
  const ticks = (values) => values.map((value) => (value && Math.max(...values.map(Math.abs)) < 0.01 ? scientific(value) : plain(value)));
  const share = (value) => `${+(100 * value).toPrecision(4)}\u00a0%`;
  function hours(value) {
    const seconds = Math.round(value * 3600);
    if (seconds < 120) return `${+(value * 3600).toPrecision(3)} s`;
    return seconds < 7200 ? `${+(value * 60).toPrecision(3)} min` : `${+value.toPrecision(4)} h`;
  }
  const FORMATS = { step: (value) => Math.round(value).toLocaleString("en"), hours };
  const format = (unit) => FORMATS[unit] ?? plain;

  // Round values between the ends of a log axis: 1, 2 and 5 times powers of ten, the powers alone where these are many,
  // and multiples of one step where these are few.
  function logTicks(low, high) {
    const first = Math.floor(Math.log10(low)), num = Math.floor(Math.log10(high)) - first + 1;
    const every = Math.ceil(num / 8), factors = num > 3 ? [1] : [1, 2, 5];
    const decades = Array.from({ length: num }, (_, i) => i).filter((i) => i % every === 0);
    const values = decades.flatMap((i) => factors.map((factor) => +`${factor}e${first + i}`));
    const inside = values.filter((value) => value >= low && value <= high);
    if (inside.length >= 3) return inside;
    const rough = (high - low) / 5, base = +`1e${Math.floor(Math.log10(rough))}`;
    const step = base * [1, 2, 5, 10].find((factor) => factor * base >= rough);
    const start = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - start + 1 }, (_, i) => +((start + i) * step).toPrecision(12));
  }

  // Converts a step of a run to tokens, FLOPs or hours by linear interpolation between logged steps.
  function convert(clock, unit, step) {
    if (unit === "step") return step;
    const steps = clock.step, values = clock[unit];
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle;
    }
    const width = steps[high] - steps[low];
    return width ? values[low] + ((step - steps[low]) / width) * (values[high] - values[low]) : values[low];
  }

  function table(series, clock, isLog) {
    const xs = [], ys = [];
    series.x.forEach((step, place) => {
      const x = convert(clock, state.x, step), y = series.y[place];
      if (xs.length && x <= xs[xs.length - 1]) return; // a unit that does not advance with this step
      xs.push(x);
      ys.push(y === null || ((state.log || isLog) && y <= 0) ? null : y);
    });
    return [xs, ys];
  }

  // The nearest point of one series: after a join, most places of a series are empty.
  function nearest(plot, number, place) {
    const xs = plot.data[0], ys = plot.data[number];
    const at = plot.valToPos(xs[place], "x");
    for (let away = 0; away < xs.length; away++) {
      const [left, right] = [place - away, place + away].map((i) => (ys[i] == null ? Infinity : Math.abs(plot.valToPos(xs[i], "x") - at)));
      if (Math.min(left, right) < Infinity) return Math.min(left, right) > NEAR ? null : left <= right ? place - away : place + away;
      if (place - away < 0 && place + away >= xs.length) break;
    }
    return null;
  }

  function tooltip(chart, shown) {
    const tip = element("div", { className: "tip", hidden: true });
    let inside = false;
    return {
      hooks: {
        init: (plot) => {
          plot.over.append(tip);
          plot.over.addEventListener("mouseenter", () => (inside = true));
          plot.over.addEventListener("mouseleave", () => { inside = false; tip.hidden = true; });
        },
        setCursor: (plot) => {
          const { idx, idxs, left, top } = plot.cursor;
          const rows = shown.map((series, i) => [series, idxs?.[i + 1], plot.data[i + 1]])
            .filter(([series, place]) => place != null && plot.series[shown.indexOf(series) + 1].show)
            .map(([series, place, ys]) => [series, ys[place]]).sort((a, b) => b[1] - a[1]);
          tip.hidden = !inside || idx == null || !rows.length;
          if (tip.hidden) return;
          const own = chart.share ? share : plain;
          tip.replaceChildren(
            element("div", { className: "at" }, `${state.x} ${format(state.x)(plot.data[0][idx])}`),
            ...rows.map(([series, y]) => {
              const swatch = element("span", { className: "swatch" });
              swatch.style.background = color(`--c${series.color}`);
              return element("div", {}, swatch, `${series.name} `, element("b", {}, own(y)));
            }),
          );
          const width = plot.over.clientWidth;
          tip.style.top = `${Math.max(0, Math.min(top + 12, plot.over.clientHeight - tip.offsetHeight))}px`;
          tip.style.left = `${left > width / 2 ? Math.max(0, left - tip.offsetWidth - 12) : left + 12}px`;
        },
      },
    };
  }

  // Lines across the plot: levels to compare with, and what happened to the run.
  function lines(chart, clocks) {
    const across = (plot, [x1, y1], [x2, y2], dash, stroke) => {
      plot.ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
      plot.ctx.strokeStyle = stroke;
      plot.ctx.lineWidth = devicePixelRatio;
      plot.ctx.beginPath();
      plot.ctx.moveTo(x1, y1);
      plot.ctx.lineTo(x2, y2);
      plot.ctx.stroke();
    };
    // A border in the colour of the page keeps the text readable above lines.
    const write = (ctx, text, x, y, name) => {
      ctx.setLineDash([]);
      ctx.lineWidth = 4 * devicePixelRatio;
      ctx.strokeStyle = color("--surface");
      ctx.strokeText(text, x, y);
      ctx.fillStyle = color(name);
      ctx.fillText(text, x, y);
    };
    return {
      hooks: {
        draw: (plot) => {
          const { ctx, bbox } = plot, right = bbox.left + bbox.width, bottom = bbox.top + bbox.height;
          ctx.save();
          ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
          for (const level of chart.levels) {
            const y = plot.valToPos(level.y, "y", true);
            if (!(y >= bbox.top && y <= bottom)) continue;
            across(plot, [bbox.left, y], [right, y], [6, 4], color("--quiet"));
            ctx.textAlign = "right";
            write(ctx, level.text, right - 4 * devicePixelRatio, y - 5 * devicePixelRatio, "--quiet");
          }
          let free = -Infinity;
          for (const mark of chart.marks) {
            const x = plot.valToPos(convert(clocks[mark.run], state.x, mark.x), "x", true);
            if (!(x >= bbox.left && x <= right) || state.hidden.has(mark.run)) continue;
            across(plot, [x, bbox.top], [x, bottom], [2, 3], color(mark.bad ? "--bad" : "--axis"));
            const width = ctx.measureText(mark.text).width;
            const start = Math.min(x + 4 * devicePixelRatio, right - width);
            if (start < free) continue;
            ctx.textAlign = "left";
            write(ctx, mark.text, start, bbox.top + 11 * devicePixelRatio, mark.bad ? "--bad" : "--quiet");
            free = start + width + 8 * devicePixelRatio;
          }
          ctx.restore();
        },
      },
    };
  }

  function draw(holder, chart, runs) {
    const clocks = runs.map((run) => run.clock);
    const shown = chart.series.filter((series) => (state.raw || series.kind !== "faint"));
    const tables = shown.map((series) => table(series, clocks[series.run], chart.log));
    const data = uPlot.join(tables);
    if (!data[0]?.length) return holder.replaceChildren(element("p", { className: "quiet" }, "no data"));
    const ends = [data[0][0], data[0][data[0].length - 1]];
    const first = state.x === "step" && !(chart.start > 0) ? 0 : ends[0];
    const values = shown.flatMap((series, i) => tables[i][1]).filter((y) => y !== null);
    const whole = [Math.min(...values), Math.max(...values)];
    const isLog = (state.log || chart.log) && values.length > 0 && whole[0] > 0;
    function range(plot, low, high) {
      if (low == null) return [0, 1];
      if (low === whole[0] && high === whole[1]) { // not zoomed in
        const levels = chart.levels.map((level) => level.y).filter((y) => !isLog || y > 0);
        [low, high] = [Math.min(low, ...levels), Math.max(high, ...levels)];
      }
      if (isLog) return [low / 1.06, high * 1.06];
      if (chart.zero && low >= 0) return [0, high * 1.06 || 1];
      const margin = 0.06 * (high - low) || 0.05 * Math.abs(high) || 1;
      return [low - margin, high + margin];
    }
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const plot = new uPlot(
      {
        width: holder.clientWidth,
        height: holder.clientHeight,
        legend: { show: false },
        padding: [10, 20, 0, 0],
        cursor: {
          drag: { x: true, y: true, uni: 25 },
          sync: { key: "curves", setSeries: false, scales: ["x", null] },
          dataIdx: (plot, number, place) => (number === 0 ? place : nearest(plot, number, place)),
          y: false,
        },
        scales: {
          x: { time: false, range: (plot, low, high) => (low === high ? [low - 1, high + 1] : [low <= ends[0] ? Math.min(first, low) : low, high]) },
          y: { distr: isLog ? 3 : 1, range },
        },
        axes: [
          { ...axis, size: 30, values: (plot, values) => values.map((value) => (state.x === "step" && value % 1 ? "" : format(state.x)(value))), space: 80 },
          { ...axis, size: 62, values: (plot, values) => (chart.share ? values.map(share) : ticks(values)), ...(isLog ? { splits: (plot, number, low, high) => logTicks(low, high), filter: (plot, values) => values } : {}) },
        ],
        series: [
          {},
          ...shown.map((series) => ({
            stroke: color(`--c${series.color}`),
            width: series.kind === "faint" ? 1 : 1.8,
            alpha: series.kind === "faint" ? 0.35 : 1,
            dash: series.dash ? [6, 4] : undefined,
            show: !state.hidden.has(series.run),
            points: series.kind === "points" ? { show: true, size: 6, fill: color(`--c${series.color}`) } : { show: tables[shown.indexOf(series)][0].length < 2 },
          })),
        ],
        plugins: [tooltip(chart, shown), lines(chart, clocks)],
        hooks: {
          setScale: [
            (plot, name) => {
              const { min, max } = plot.scales[name];
              if (name === "x") state.zoom.set(chart.key, min <= ends[0] && max >= ends[1] ? null : [min, max]);
            },
          ],
        },
      },
      data,
      holder.replaceChildren() ?? holder,
    );
    return { plot, chart, shown, holder };
  }

  function drawAll() {
    const kept = new Map(state.zoom);
    plots.forEach(({ plot }) => plot.destroy());
    plots = [];
    const source = document.getElementById("curves");
    if (!source) return;
    const { runs, charts } = JSON.parse(source.textContent);
    for (const holder of document.querySelectorAll("[data-chart]")) {
      const drawn = draw(holder, charts[+holder.dataset.chart], runs);
      if (drawn) plots.push(drawn);
    }
    for (const { plot, chart } of plots) {
      const zoom = kept.get(chart.key);
      if (zoom) plot.setScale("x", { min: zoom[0], max: zoom[1] });
    }
  }

  function connect() {
    const control = (id) => document.getElementById(id);
    const bind = (id, name, property) => {
      const input = control(id);
      if (!input) return;
      input[property] = state[name];
      input.onchange = () => {
        if (name !== "raw") state.zoom.clear();
        state[name] = input[property];
        drawAll();
      };
    };
    bind("x-unit", "x", "value");
    bind("log-scale", "log", "checked");
    bind("raw-values", "raw", "checked");
    for (const button of document.querySelectorAll("button[data-run]")) {
      const run = +button.dataset.run;
      const show = () => button.setAttribute("aria-pressed", String(!state.hidden.has(run)));
      show();
      button.onclick = () => {
        if (!state.hidden.delete(run)) state.hidden.add(run);
        show();
        for (const { plot, shown } of plots) {
          shown.forEach((series, i) => series.run === run && plot.setSeries(i + 1, { show: !state.hidden.has(run) }));
        }
      };
    }
  }

  function start() {
    connect();
    drawAll();
  }

  // A served page replaces its content when the run has written something new.
  async function refresh(seconds) {
    const status = () => document.getElementById("live");
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
      try {
        const answer = await fetch(location.href, { cache: "no-store" });
        if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
        const opened = [...document.querySelectorAll("details")].map((part) => part.open);
        document.querySelector("main").replaceWith(document.adoptNode(fresh));
        document.querySelectorAll("details").forEach((part, i) => (part.open = opened[i] ?? part.open));
        start();
      } catch (error) {
        if (status()) status().textContent = `not updated since ${status().dataset.time}: the server does not answer`;
      }
    }
  }

  start();
  let pending;
  addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(drawAll, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  if (document.body.dataset.refresh) refresh(+document.body.dataset.refresh);
})();
