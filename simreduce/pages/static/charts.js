"use strict";

/* Draws the charts of a page: show(specs) draws those that now stand in it, and redraws them when the window or the colours change. */
const simreduceCharts = (() => {
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const charts = new Map();

  /* The colours of the page, as they are now. */
  function palette() {
    const style = getComputedStyle(root);
    const value = (name) => style.getPropertyValue("--" + name).trim();
    return {
      ink: value("ink"), faint: value("faint"), line: value("line"), ground: value("ground"),
      raised: value("raised"), quiet: value("quiet"), path: value("path"),
      series: ["c1", "c2", "c3", "c4", "c5", "c6"].map(value),
    };
  }

  const digits = (x) => String(Number(x.toPrecision(4)));
  function time(us) {
    if (us >= 1e6) return digits(us / 1e6) + " s";
    return us >= 1e3 ? digits(us / 1e3) + " ms" : digits(us) + " us";
  }
  function bytes(n) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    const power = n < 1 ? 0 : Math.min(Math.floor(Math.log10(n) / 3), 4);
    return digits(n / 1000 ** power) + " " + units[power];
  }
  const FORMATS = {
    us: time,
    bytes,
    share: (x) => digits(x * 100) + "%",
    rate: (x) => digits(x) + " GB/s",
    plain: (x) => (x >= 1000 ? Number(x.toPrecision(4)).toLocaleString("en") : digits(x)),
  };

  /* A tooltip of text nodes: names are never read as HTML. */
  function tip(...lines) {
    const box = document.createElement("div");
    box.className = "tip";
    lines.filter(Boolean).forEach((line, i) => {
      const part = document.createElement(i ? "div" : "b");
      part.textContent = line;
      box.append(part);
    });
    return box;
  }

  function common(p, formatter) {
    return {
      animation: false,
      textStyle: { color: p.ink, fontFamily: "system-ui, sans-serif" },
      color: p.series,
      tooltip: {
        formatter, confine: true, backgroundColor: p.raised, borderColor: p.line,
        textStyle: { color: p.ink }, transitionDuration: still.matches ? 0 : 0.2,
      },
    };
  }
  function axis(p, more) {
    return {
      axisLine: { lineStyle: { color: p.quiet } },
      axisTick: { lineStyle: { color: p.quiet } },
      axisLabel: { color: p.faint, hideOverlap: true },
      splitLine: { lineStyle: { color: p.line } },
      minorSplitLine: { show: false },
      nameTextStyle: { color: p.faint },
      nameLocation: "middle",
      ...more,
    };
  }

  /* The name of a vertical axis stands above it. */
  const above = { nameLocation: "end", nameGap: 14, nameTextStyle: { align: "left" } };

  /* A category axis, and the room that its names take; long ones are cut. */
  const pen = document.createElement("canvas").getContext("2d");
  function names(p, width, data) {
    pen.font = "12px system-ui, sans-serif";
    const longest = Math.max(0, ...data.map((name) => pen.measureText(name).width));
    const room = Math.ceil(Math.min(longest + 4, width * (width < 500 ? 0.36 : 0.42)));
    const overflow = width < 500 && data.length <= 20 ? "break" : "truncate";
    const labels = { color: p.ink, fontSize: width < 500 ? 11 : 12, lineHeight: 12, width: room, overflow, interval: 0 };
    return { left: room + 12, axis: axis(p, { type: "category", data, inverse: true, axisTick: { show: false }, axisLabel: labels }) };
  }

  /* A legend that wraps, and the height that it takes. */
  function legend(p, width, words) {
    pen.font = "12px system-ui, sans-serif";
    let [lines, x] = [1, 0];
    for (const word of words) {
      const more = pen.measureText(word).width + 58;
      if (x && x + more > width - 10) [lines, x] = [lines + 1, 0];
      x += more;
    }
    return { height: lines * 24, show: { data: words, textStyle: { color: p.ink }, left: 0, top: 0, width, itemWidth: 30, itemGap: 10, inactiveColor: p.quiet } };
  }

  /* bars: names, values, unit, marks (0: other, 1: best, 2: default), floors (optional). */
  function bars(d, p, width) {
    const form = FORMATS[d.unit];
    const named = names(p, width, d.names);
    const colours = [p.quiet, p.series[0], p.series[1]];
    const series = [{
      type: "bar", barMaxWidth: 20,
      data: d.values.map((value, i) => ({ value, itemStyle: { color: colours[d.marks[i]], borderRadius: [0, 3, 3, 0] } })),
      label: { show: true, position: "right", color: p.ink, formatter: (x) => form(x.value) },
    }];
    if (d.floors) {
      series.push({
        type: "scatter", symbol: "rect", symbolSize: [2, 16], itemStyle: { color: p.ink }, silent: true,
        data: d.floors.map((x, i) => [x, i]).filter((x) => x[0] !== null),
      });
    }
    return {
      ...common(p, (x) => tip(d.names[x.dataIndex], form(d.values[x.dataIndex]), d.floors && "bound " + form(d.floors[x.dataIndex]))),
      grid: { left: named.left, right: 78, top: 6, bottom: 26 },
      xAxis: axis(p, { type: "value", axisLabel: { color: p.faint, hideOverlap: true, formatter: form }, splitNumber: width < 500 ? 3 : 5 }),
      yAxis: named.axis,
      series,
    };
  }

  /* curves: lines of {name, points, dashed}, and the units of x and y. */
  function curves(d, p, width) {
    const [formX, formY] = [FORMATS[d.x], FORMATS[d.y]];
    const top = legend(p, width, d.lines.map((each) => each.name));
    const line = (each, i) => ({
      type: "line", name: each.name, data: each.points, symbol: each.dashed ? "none" : ["circle", "rect", "triangle", "diamond"][i % 4], symbolSize: 7,
      lineStyle: { width: each.dashed ? 1.5 : 2.25, type: each.dashed ? [5, 4] : ["solid", [9, 3], [3, 2], [9, 3, 2, 3]][i % 4] },
      ...(each.dashed ? { color: p.ink, itemStyle: { opacity: 0 } } : {}),
    });
    return {
      ...common(p, (x) => tip(x.seriesName, formX(x.value[0]) + ": " + formY(x.value[1]))),
      legend: top.show,
      grid: { left: 12, right: 40, top: top.height + 34, bottom: 34, containLabel: true },
      xAxis: axis(p, { type: "log", logBase: d.base ?? 10, name: d.name_x, nameGap: 28, min: "dataMin", max: "dataMax", axisLabel: { color: p.faint, hideOverlap: true, formatter: formX } }),
      yAxis: axis(p, { type: d.log ? "log" : "value", scale: true, name: d.name_y, ...above, axisLabel: { color: p.faint, formatter: formY } }),
      series: d.lines.map(line),
    };
  }

  /* points: groups of {name, points: [x, y, text]}; with one unit for both axes, their diagonal. */
  function points(d, p, width) {
    const [formX, formY] = d.unit ? [FORMATS[d.unit], FORMATS[d.unit]] : [FORMATS[d.x], FORMATS[d.y]];
    const top = legend(p, width, d.groups.map((g) => g.name));
    const ends = (i, of) => {
      const all = d.groups.flatMap((g) => g.points.map((x) => x[i]).concat(of === undefined ? [] : g.points.map((x) => x[of])));
      const [least, most] = [Math.min(...all), Math.max(...all)];
      if (!d.unit && most < 20 * least) return { type: "value", scale: true };
      return { type: "log", min: least / 1.3, max: most * 1.3 };
    };
    const [endsX, endsY] = d.unit ? [ends(0, 1), ends(0, 1)] : [ends(0), ends(1)];
    const mine = (name, form, more) => axis(p, { name, nameGap: 28, axisLabel: { color: p.faint, hideOverlap: true, formatter: form }, ...more });
    const diagonal = { type: "line", data: [[endsX.min, endsX.min], [endsX.max, endsX.max]], symbol: "none", silent: true, lineStyle: { color: p.faint, type: "dashed", width: 1 }, tooltip: { show: false } };
    return {
      ...common(p, (x) => tip(x.value[2], x.seriesName, d.name_x + " " + formX(x.value[0]), d.name_y + " " + formY(x.value[1]))),
      legend: { ...top.show, itemWidth: 14 },
      grid: { left: 12, right: 40, top: top.height + 34, bottom: 34, containLabel: true },
      xAxis: mine(d.name_x, formX, endsX),
      yAxis: mine(d.name_y, formY, { ...endsY, ...above }),
      series: [
        ...d.groups.map((g, i) => ({ type: "scatter", name: g.name, data: g.points, symbol: ["circle", "rect", "triangle", "diamond"][i % 4], symbolSize: 10 })),
        ...(d.unit ? [diagonal] : []),
      ],
    };
  }

  /* stack: one bar in parts, each {name, value}; unit. */
  function stack(d, p, width, chart) {
    const form = FORMATS[d.unit];
    const top = legend(p, width, d.parts.map((part) => part.name));
    chart.echarts.resize({ height: top.height + 88 });
    chart.place.style.height = top.height + 88 + "px";
    const whole = d.parts.reduce((sum, part) => sum + part.value, 0);
    const share = (value) => Math.round((value / whole) * 100) + "%";
    return {
      ...common(p, (x) => tip(x.seriesName, form(x.value) + ", " + share(x.value))),
      legend: top.show,
      grid: { left: 2, right: 24, top: top.height + 12, bottom: 26 },
      xAxis: axis(p, { type: "value", max: whole, splitLine: { show: false }, axisLabel: { color: p.faint, hideOverlap: true, showMaxLabel: true, formatter: form } }),
      yAxis: { type: "category", data: [""], show: false },
      series: d.parts.map((part) => ({
        type: "bar", stack: "all", name: part.name, data: [part.value], barWidth: 36,
        itemStyle: { borderColor: p.ground, borderWidth: 1 },
        label: { show: (part.value / whole) * width > 40, color: p.ground, fontWeight: 600, formatter: () => share(part.value) },
      })),
    };
  }

  /* timeline: every row and kind is one item, which draws all of its bars that can be seen. */
  const Bars = echarts.graphic.extendShape({
    type: "bars",
    shape: { rects: [] },
    buildPath(context, shape) {
      for (const [x, y, width, height] of shape.rects) context.rect(x, y, width, height);
    },
  });
  echarts.graphic.registerShape("bars", Bars);

  function firstAfter(values, x) {
    let [low, high] = [0, values.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function visible(item, toX, clip, y, height) {
    const rects = [];
    const [left, right] = [clip.x, clip.x + clip.width];
    let until = -1;
    for (let i = firstAfter(item.end, toX.at(left)); i < item.begin.length; i++) {
      const from = Math.max(toX(item.begin[i]), left);
      if (from > right) break;
      const to = Math.min(toX(item.end[i]), right);
      if (to - until < 0.4) continue;
      rects.push([from, y, Math.max(to - from > 4 ? to - from - 1 : to - from, 0.7), height]);
      until = to;
    }
    return rects;
  }

  const MOST_ROWS = 28;

  function timeline(d, p, width, chart) {
    const group = d.groups[chart.group];
    const named = names(p, width, group.rows);
    const usual = d.kinds.filter((kind) => kind !== "critical path");
    const colours = Object.fromEntries([["critical path", p.path], ...usual.map((kind, i) => [kind, p.series[i % 6]])]);
    const kinds = d.kinds.filter((kind) => group.items.some((item) => item.kind === kind));
    const items = Object.fromEntries(kinds.map((kind) => [kind, group.items.filter((item) => item.kind === kind)]));
    const hide = group.rows.length > MOST_ROWS;
    const touch = matchMedia("(pointer: coarse)").matches;
    const render = (kind) => (params, api) => {
      const item = items[kind][params.dataIndex];
      const [x0, y] = api.coord([0, item.row]);
      const scale = api.coord([d.whole, item.row])[0] - x0;
      const toX = (t) => x0 + (t / d.whole) * scale;
      toX.at = (x) => ((x - x0) / scale) * d.whole;
      const height = Math.min(api.size([0, 1])[1] * 0.72, 22);
      const box = params.coordSys;
      if (y < box.y || y > box.y + box.height) return null;
      return { type: "bars", shape: { rects: visible(item, toX, box, y - height / 2, height) }, style: { fill: colours[kind] } };
    };
    function formatter(x) {
      const item = items[x.seriesName][x.dataIndex];
      const at = chart.echarts.convertFromPixel({ seriesIndex: 0 }, [chart.mouse, 0])[0];
      const i = Math.min(firstAfter(item.end, at), item.begin.length - 1);
      return tip(group.rows[item.row], d.texts[item.text[i]], time(item.begin[i]) + " to " + time(item.end[i]) + ", " + time(item.end[i] - item.begin[i]), item.kind);
    }
    const zoom = { filterMode: "none", throttle: 0 };
    const slider = { type: "slider", showDetail: false, brushSelect: false, borderColor: p.line, backgroundColor: p.raised, fillerColor: p.quiet + "66", handleStyle: { color: p.ground, borderColor: p.faint }, moveHandleStyle: { color: p.quiet }, dataBackground: { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } } };
    return {
      ...common(p, formatter),
      animation: false,
      legend: legend(p, width, kinds).show,
      grid: { left: named.left, right: hide ? 34 : 24, top: 34, bottom: 46 },
      xAxis: axis(p, { type: "value", min: 0, max: d.whole, axisLabel: { color: p.faint, hideOverlap: true, formatter: time }, splitNumber: width < 500 ? 3 : 6 }),
      yAxis: named.axis,
      dataZoom: [
        { type: "inside", xAxisIndex: 0, zoomOnMouseWheel: "ctrl", moveOnMouseMove: !touch, preventDefaultMouseMove: !touch, ...zoom },
        { ...slider, xAxisIndex: 0, height: 18, bottom: 4, ...zoom },
        ...(hide ? [{ ...slider, yAxisIndex: 0, width: 14, right: 2, startValue: 0, endValue: MOST_ROWS - 1, zoomLock: true, ...zoom }] : []),
      ],
      series: kinds.map((kind) => ({
        type: "custom", name: kind, renderItem: render(kind), progressive: 0, encode: { x: -1, y: 0 }, clip: true,
        itemStyle: { color: colours[kind] }, data: items[kind].map((item) => [item.row]),
      })),
    };
  }

  const KINDS = { bars, curves, points, stack, timeline };

  function draw(chart) {
    const p = palette();
    const spec = chart.spec;
    if (spec.kind === "timeline") {
      const rows = Math.min(spec.groups[chart.group].rows.length, MOST_ROWS);
      chart.place.style.height = Math.max(rows * 22 + 90, 170) + "px";
    }
    if (chart.echarts) chart.echarts.dispose();
    chart.echarts = echarts.init(chart.place, null, { renderer: "canvas", devicePixelRatio: root.dataset.print ? 3 : Math.max(devicePixelRatio, 1) });
    chart.echarts.setOption(KINDS[spec.kind](spec, p, chart.place.clientWidth, chart));
    if (spec.kind === "timeline") {
      chart.echarts.getZr().on("mousemove", (event) => { chart.mouse = event.offsetX; });
    }
  }

  /* What part of the whole is shown, in percent. */
  function part(chart) {
    const { start, end } = chart.echarts.getOption().dataZoom[0];
    return [start, end];
  }
  function zoomTo(chart, start, size) {
    const width = Math.min(Math.max(size, 0.01), 100);
    const from = Math.min(Math.max(start, 0), 100 - width);
    chart.echarts.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start: from, end: from + width });
  }
  const ACTIONS = {
    left: (chart, [start, end]) => zoomTo(chart, start - (end - start) / 4, end - start),
    right: (chart, [start, end]) => zoomTo(chart, start + (end - start) / 4, end - start),
    in: (chart, [start, end]) => zoomTo(chart, start + (end - start) / 4, (end - start) / 2),
    out: (chart, [start, end]) => zoomTo(chart, start - (end - start) / 2, (end - start) * 2),
    all: (chart) => zoomTo(chart, 0, 100),
    up: (chart) => scrollRows(chart, -4),
    down: (chart) => scrollRows(chart, 4),
  };
  function scrollRows(chart, by) {
    const zoom = chart.echarts.getOption().dataZoom[2];
    const last = chart.spec.groups[chart.group].rows.length - 1;
    if (!zoom) return;
    const first = Math.min(Math.max(Math.round(zoom.startValue) + by, 0), last - MOST_ROWS + 1);
    chart.echarts.dispatchAction({ type: "dataZoom", dataZoomIndex: 2, startValue: first, endValue: first + MOST_ROWS - 1 });
  }
  const act = (chart, what) => ACTIONS[what](chart, part(chart));
  const KEYS = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", "+": "in", "=": "in", "-": "out", 0: "all" };

  function equip(chart, number) {
    const tools = document.querySelector(`[data-tools="${number}"]`);
    if (!tools) return;
    const choices = tools.querySelector(".groups");
    choices.hidden = chart.spec.groups.length < 2;
    chart.spec.groups.forEach((group, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = group.name;
      button.setAttribute("aria-pressed", String(i === chart.group));
      button.addEventListener("click", () => {
        chart.group = i;
        [...choices.children].forEach((each, k) => each.setAttribute("aria-pressed", String(k === i)));
        draw(chart);
      });
      choices.append(button);
    });
    tools.addEventListener("click", (event) => {
      const what = event.target.dataset.do;
      if (what) act(chart, what);
    });
    chart.place.addEventListener("keydown", (event) => {
      const what = KEYS[event.key];
      if (!what || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act(chart, what);
    });
    tools.hidden = false;
  }

  function drawAll() {
    charts.forEach(draw);
  }

  /* Draw into every place with data-chart, which is the key of its spec. Charts that are there and
     show the same stay as they are. */
  function show(specs) {
    for (const [key, chart] of charts) {
      if (chart.place.isConnected && chart.text === JSON.stringify(specs[key])) continue;
      chart.echarts.dispose();
      charts.delete(key);
    }
    document.querySelectorAll("[data-chart]").forEach((place) => {
      const key = place.dataset.chart;
      if (charts.has(key)) return;
      const chart = { place, spec: specs[key], text: JSON.stringify(specs[key]), group: 0, mouse: 0 };
      place.style.height = place.dataset.height + "px";
      charts.set(key, chart);
      equip(chart, key);
      draw(chart);
    });
    performance.mark("drawn");
    root.dataset.drawn = "yes";
  }

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width || root.dataset.print) return;
    width = innerWidth;
    drawAll();
  });
  dark.addEventListener("change", drawAll);
  still.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => {
    root.dataset.print = "yes";
    drawAll();
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    drawAll();
  });
  return { show };
})();
