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
  /* Labels of an axis. */
  const FORMATS = {
    us: time,
    bytes,
    share: (x) => digits(x * 100) + "%",
    rate: (x) => digits(x) + " GB/s",
    plain: (x) => (x >= 1000 ? Number(x.toPrecision(12)).toLocaleString("en") : digits(x)),
  };
  /* Figures beside each other keep their zeros: 2.260 ms under 1.688 ms. */
  const kept = (x) => (x >= 9999.5 ? Math.round(x).toLocaleString("en") : x === 0 ? "0" : x.toPrecision(4));
  const part = (x) => (x >= 0.01 || x === 0 ? (x * 100).toFixed(1) : x < 5e-5 ? "<0.01" : (x * 100).toFixed(2)) + "%";
  const FIGURES = {
    us: (x) => (x >= 1e6 ? kept(x / 1e6) + " s" : x >= 1e3 ? kept(x / 1e3) + " ms" : kept(x) + " us"),
    bytes,
    share: part,
    rate: (x) => kept(x) + " GB/s",
    plain: (x) => (Number.isInteger(x) ? x.toLocaleString("en") : kept(x)),
  };
  /* Labels of an axis from 0 to most, all in one unit; `shown` is what is to be seen of it now. */
  function labels(unit, most, shown) {
    if (unit !== "us") return FORMATS[unit];
    const [scale, name] = most >= 1e6 ? [1e6, " s"] : most >= 1e3 ? [1e3, " ms"] : [1, " us"];
    return (x) => {
      const step = (shown ? shown() : most) / 8 / scale;
      const decimals = Math.min(Math.max(Math.ceil(-Math.log10(step)) + 1, 0), 6);
      return x === 0 ? "0" : Number((x / scale).toFixed(decimals)) + name;
    };
  }

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
    const room = Math.ceil(Math.min(longest + 6, width * (width < 500 ? 0.36 : 0.42)));
    const wrapped = width < 500 && data.length <= 20;
    const style = { color: p.ink, fontSize: width < 500 ? 11 : 12, lineHeight: 12, width: room, overflow: "break", interval: 0 };
    style.formatter = (name) => (wrapped ? lines(cut(name, room * 3), room) : cut(name, room));
    const most = wrapped ? Math.max(1, ...data.map((name) => style.formatter(name).split("\n").length)) : 1;
    return { left: room + 12, most, axis: axis(p, { type: "category", data, inverse: true, axisTick: { show: false }, axisLabel: style }) };
  }

  /* A name without its middle, where it would be wider than the room: names often differ at their end. */
  function cut(name, room) {
    if (pen.measureText(name).width <= room) return name;
    let kept = name.length - 1;
    const short = () => name.slice(0, Math.ceil(kept / 2)) + "\u2026" + name.slice(name.length - Math.floor(kept / 2));
    while (kept > 4 && pen.measureText(short()).width > room) kept -= 1;
    return short();
  }

  /* A name in lines that end at a blank or a sign, where they would be wider than the room. */
  function lines(name, room) {
    const found = [""];
    for (const piece of name.split(/(?<=[\s+,/=_:>])/)) {
      if (found.at(-1) && pen.measureText(found.at(-1) + piece).width > room) found.push("");
      found[found.length - 1] += piece;
    }
    return found.join("\n");
  }

  /* A legend that wraps, and the height that it takes. */
  function legend(p, width, words, itemWidth = 26) {
    pen.font = "12px system-ui, sans-serif";
    let [count, x] = [1, 0];
    for (const word of words) {
      const more = pen.measureText(word).width + itemWidth + 16;
      if (x && x + more > width - 4) [count, x] = [count + 1, 0];
      x += more;
    }
    return { height: count * 23 + 3, show: { data: words, textStyle: { color: p.ink, fontSize: 12 }, left: 0, top: 0, width: width - 12, itemWidth, itemGap: 10, inactiveColor: p.quiet } };
  }

  /* bars: names, values, unit, marks (0: other, 1: best, 2: default), floors (optional). */
  function bars(d, p, width, chart) {
    const form = FIGURES[d.unit];
    const named = names(p, width, d.names);
    pen.font = "12px system-ui, sans-serif";
    const right = Math.ceil(Math.max(...d.values.map((value) => pen.measureText(form(value)).width))) + 14;
    const colours = [p.quiet, p.series[0], p.series[1]];
    if (named.most > 2) {
      chart.place.style.height = d.names.length * (named.most * 12 + 6) + 50 + "px";
      chart.echarts.resize();
    }
    const series = [{
      type: "bar", barMaxWidth: 20,
      data: d.values.map((value, i) => ({ value, itemStyle: { color: colours[d.marks[i]], borderRadius: [0, 3, 3, 0] } })),
      label: { show: true, position: "right", color: p.ink, backgroundColor: p.ground, padding: [1, 2], formatter: (x) => form(x.value) },
    }];
    if (d.floors) {
      series.push({
        type: "scatter", symbol: "rect", symbolSize: [2, 16], itemStyle: { color: p.ink }, silent: true,
        data: d.floors.map((x, i) => [x, i]).filter((x) => x[0] !== null),
      });
    }
    return {
      ...common(p, (x) => tip(d.names[x.dataIndex], form(d.values[x.dataIndex]), d.floors && "bound " + form(d.floors[x.dataIndex]))),
      grid: { left: named.left, right, top: 6, bottom: d.name ? 42 : 26 },
      xAxis: axis(p, { type: "value", name: d.name, nameGap: 26, axisLabel: { color: p.faint, hideOverlap: true, formatter: labels(d.unit, Math.max(...d.values)) }, splitNumber: width < 500 ? 2 : 5 }),
      yAxis: named.axis,
      series,
    };
  }

  /* An axis that begins at 0, unless the values lie so near to each other that they could not be told apart; then it says so. */
  function start(log, values) {
    if (log) return { axis: { type: "log", scale: true }, words: " (log scale)" };
    const near = Math.min(...values) > 0.5 * Math.max(...values);
    return { axis: { type: "value", scale: near, boundaryGap: [0, "6%"] }, words: near ? " (the axis does not begin at 0)" : "" };
  }

  /* curves: lines of {name, points, dashed, today}, and the units of x and y. What runs today is orange. */
  function curves(d, p, width) {
    const [formX, formY] = [FIGURES[d.x], FIGURES[d.y]];
    const top = legend(p, width, d.lines.map((each) => each.name));
    const values = d.lines.flatMap((each) => each.points.map((point) => point[1]));
    const from = start(d.log, values);
    const marked = d.lines.some((each) => each.today);
    const others = p.series.filter((_, i) => !marked || i !== 1);
    const colours = new Map(d.lines.filter((each) => !each.today && !each.dashed).map((each, i) => [each, others[i % others.length]]));
    const line = (each, i) => ({
      type: "line", name: each.name, data: each.points, symbol: each.dashed ? "none" : ["circle", "rect", "triangle", "diamond"][i % 4], symbolSize: 7,
      lineStyle: { width: each.dashed ? 1.5 : 2.25, type: each.dashed ? (each.today ? [10, 4] : [3, 4]) : ["solid", [9, 3], [3, 2], [9, 3, 2, 3]][i % 4] },
      color: each.today ? p.series[1] : each.dashed ? p.ink : colours.get(each),
      ...(each.dashed ? { itemStyle: { opacity: 0 } } : {}),
    });
    return {
      ...common(p, (x) => tip(x.seriesName, formX(x.value[0]) + ": " + formY(x.value[1]))),
      legend: top.show,
      grid: { left: 12, right: 40, top: top.height + 28, bottom: 34, containLabel: true },
      xAxis: axis(p, { type: "log", logBase: d.base ?? 10, name: d.name_x, nameGap: 28, min: "dataMin", max: "dataMax", axisLabel: { color: p.faint, hideOverlap: true, formatter: FORMATS[d.x] } }),
      yAxis: axis(p, { ...from.axis, name: d.name_y + from.words, ...above, axisLabel: { color: p.faint, formatter: d.log ? FORMATS[d.y] : labels(d.y, Math.max(...values)) } }),
      series: d.lines.map(line),
    };
  }

  /* 61.5 becomes 50 downwards and 100 upwards. */
  function round(x, up) {
    const power = 10 ** Math.floor(Math.log10(x));
    const steps = [1, 2, 5, 10].map((step) => step * power);
    return up ? steps.find((step) => step >= x) : steps.findLast((step) => step <= x);
  }

  /* points: groups of {name, points: [x, y, text], best}; with one unit for both axes, their diagonal. */
  function points(d, p, width) {
    const [formX, formY] = d.unit ? [FIGURES[d.unit], FIGURES[d.unit]] : [FIGURES[d.x], FIGURES[d.y]];
    const [labelX, labelY] = d.unit ? [FORMATS[d.unit], FORMATS[d.unit]] : [FORMATS[d.x], FORMATS[d.y]];
    const top = legend(p, width, d.groups.map((g) => g.name), 14);
    const ends = (i, of) => {
      const all = d.groups.flatMap((g) => g.points.map((x) => x[i]).concat(of === undefined ? [] : g.points.map((x) => x[of])));
      const [least, most] = [Math.min(...all), Math.max(...all)];
      if (!d.unit && most < 20 * least) return start(false, all);
      return { axis: { type: "log", min: round(least / 1.1, false), max: round(most * 1.1, true) }, words: "" };
    };
    const [endsX, endsY] = d.unit ? [ends(0, 1), ends(0, 1)] : [ends(0), ends(1)];
    const mine = (name, form, ends, more) => axis(p, { name: name + ends.words, nameGap: 28, axisLabel: { color: p.faint, hideOverlap: true, formatter: form }, ...ends.axis, ...more });
    const diagonal = { type: "line", data: [[endsX.axis.min, endsX.axis.min], [endsX.axis.max, endsX.axis.max]], symbol: "none", silent: true, lineStyle: { color: p.faint, type: "dashed", width: 1 }, tooltip: { show: false } };
    return {
      ...common(p, (x) => tip(x.value[2], x.seriesName, d.name_x + " " + formX(x.value[0]), d.name_y + " " + formY(x.value[1]))),
      legend: top.show,
      grid: { left: 12, right: 40, top: top.height + 28, bottom: 34, containLabel: true },
      xAxis: mine(d.name_x, labelX, endsX, {}),
      yAxis: mine(d.name_y, labelY, endsY, above),
      series: [
        ...d.groups.map((g, i) => ({ type: "scatter", name: g.name, data: g.points, symbol: ["circle", "rect", "triangle", "diamond"][i % 4], symbolSize: g.best ? 18 : 10, itemStyle: { opacity: 1 } })),
        ...(d.unit ? [diagonal] : []),
      ],
    };
  }

  /* Colours of parts and kinds: what is the same on a page has the same one, the rest what is left. */
  const MEANINGS = [/^(comput|forward)/, /^(backward|updat)/, /^(exposed|reduc|send|copy)/, /^(wait|all-gather|latency)/, /^(read|add)/];
  function meanings(words, p) {
    const left = [...p.series];
    const found = {};
    for (const known of [true, false]) {
      for (const word of words) {
        if (word in found) continue;
        const i = MEANINGS.findIndex((meaning) => meaning.test(word));
        const mine = known ? i >= 0 && left.includes(p.series[i]) && p.series[i] : left[0] ?? p.series[words.indexOf(word) % 6];
        if (!mine) continue;
        found[word] = mine;
        left.splice(left.indexOf(mine), left.includes(mine) ? 1 : 0);
      }
    }
    return found;
  }

  /* stack: one bar in parts, each {name, value}; unit. */
  function stack(d, p, width, chart) {
    const form = FIGURES[d.unit];
    const whole = d.parts.reduce((sum, each) => sum + each.value, 0);
    const share = (value) => part(value / whole);
    const words = Object.fromEntries(d.parts.map((each) => [each.name, each.name + " " + share(each.value)]));
    const top = legend(p, width, Object.values(words));
    const colours = meanings(d.parts.map((each) => each.name), p);
    chart.place.style.height = top.height + 82 + "px";
    chart.echarts.resize({ height: top.height + 82 });
    return {
      ...common(p, (x) => tip(x.seriesName, (d.unit === "share" ? "" : form(x.value) + ", ") + share(x.value))),
      legend: { ...top.show, data: d.parts.map((each) => each.name), formatter: (name) => words[name] },
      grid: { left: 2, right: 24, top: top.height + 12, bottom: 26 },
      xAxis: axis(p, { type: "value", max: whole, splitNumber: width < 500 ? 3 : 6, splitLine: { show: false }, axisLabel: { color: p.faint, hideOverlap: true, showMaxLabel: true, formatter: (x) => (x === whole && d.unit === "us" ? form(x) : labels(d.unit, whole)(x)) } }),
      yAxis: { type: "category", data: [""], show: false },
      series: d.parts.map((each) => ({
        type: "bar", stack: "all", name: each.name, data: [each.value], barWidth: 36,
        itemStyle: { color: colours[each.name], borderColor: p.ground, borderWidth: (each.value / whole) * width > 4 ? 1 : 0 },
        label: { show: (each.value / whole) * width > 46, color: p.ground, fontWeight: 600, formatter: () => share(each.value) },
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
    const colours = { ...meanings(usual, p), "critical path": p.path };
    const kinds = d.kinds.filter((kind) => group.items.some((item) => item.kind === kind));
    const items = Object.fromEntries(kinds.map((kind) => [kind, group.items.filter((item) => item.kind === kind)]));
    const hide = group.rows.length > MOST_ROWS;
    const printed = Boolean(root.dataset.print);
    const top = legend(p, width, kinds);
    const shown = () => (d.whole * (chart.shown[1] - chart.shown[0])) / 100;
    chart.place.style.height = Math.max(Math.min(group.rows.length, MOST_ROWS) * 22 + 58 + top.height, 140) + "px";
    chart.echarts.resize();
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
      legend: top.show,
      grid: { left: named.left, right: hide ? 34 : 24, top: top.height + 6, bottom: printed ? 24 : 46 },
      xAxis: axis(p, { type: "value", min: 0, max: d.whole, axisLabel: { color: p.faint, hideOverlap: true, formatter: labels("us", d.whole, shown) }, splitNumber: width < 500 ? 3 : 6 }),
      yAxis: named.axis,
      dataZoom: [
        { type: "inside", xAxisIndex: 0, start: chart.shown[0], end: chart.shown[1], zoomOnMouseWheel: "ctrl", moveOnMouseMove: !touch, preventDefaultMouseMove: !touch, ...zoom },
        { ...slider, show: !printed, xAxisIndex: 0, height: 18, bottom: 4, ...zoom },
        ...(hide ? [{ ...slider, show: !printed, yAxisIndex: 0, width: 14, right: 2, startValue: 0, endValue: MOST_ROWS - 1, zoomLock: true, ...zoom }] : []),
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
    chart.shown = chart.shown ?? [0, 100];
    if (spec.kind === "curves" || spec.kind === "points") {
      const height = Number(chart.place.dataset.height);
      chart.place.style.height = (root.dataset.print ? Math.min(height, 290) : height) + "px";
    }
    if (chart.echarts) chart.echarts.dispose();
    chart.echarts = echarts.init(chart.place, null, { renderer: "canvas", devicePixelRatio: root.dataset.print ? 3 : Math.max(devicePixelRatio, 1) });
    chart.echarts.setOption(KINDS[spec.kind](spec, p, chart.place.clientWidth, chart));
    if (spec.kind === "timeline") {
      chart.echarts.getZr().on("mousemove", (event) => { chart.mouse = event.offsetX; });
      chart.echarts.on("datazoom", () => { chart.shown = span(chart); });
    }
  }

  /* What part of the whole is shown, in percent. */
  function span(chart) {
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
  const act = (chart, what) => ACTIONS[what](chart, span(chart));
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
