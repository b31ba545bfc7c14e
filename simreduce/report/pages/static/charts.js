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

  /* The unit of an axis, and a value in it: facets have SI units. */
  const UNITS = { seconds: ["us", 1e6], bytes: ["bytes", 1], "bytes/s": ["rate", 1e-9], share: ["share", 1], number: ["plain", 1], times: ["plain", 1] };
  const unitOf = (axis) => UNITS[axis.quantity][0];
  const inUnit = (axis, x) => x * UNITS[axis.quantity][1];
  const roles = (p) => ({ best: p.series[0], today: p.series[1], others: p.quiet, ink: p.ink });

  /* bars: the rows of a facet, and ticks that stand across them. */
  function bars(f, p, width, chart) {
    const rows = f.y.names;
    const [values, colours, floors] = [[], [], []];
    for (const each of f.series) {
      for (const [x, row] of each.points) {
        if (each.mark === "tick") floors[row] = inUnit(f.x, x);
        else [values[row], colours[row]] = [inUnit(f.x, x), roles(p)[each.colour]];
      }
    }
    const unit = unitOf(f.x);
    const form = FIGURES[unit];
    const named = names(p, width, rows);
    pen.font = "12px system-ui, sans-serif";
    const right = Math.ceil(Math.max(...values.map((value) => pen.measureText(form(value)).width))) + 14;
    chart.place.style.height = rows.length * Math.max(26, named.most > 2 ? named.most * 12 + 6 : 0) + 62 + "px";
    chart.echarts.resize();
    const series = [{
      type: "bar", barMaxWidth: 20,
      data: values.map((value, i) => ({ value, itemStyle: { color: colours[i], borderRadius: [0, 3, 3, 0] } })),
      label: { show: true, position: "right", color: p.ink, backgroundColor: p.ground, padding: [1, 2], formatter: (x) => form(x.value) },
    }];
    if (floors.length) {
      series.push({
        type: "scatter", symbol: "rect", symbolSize: [2, 16], itemStyle: { color: p.ink }, silent: true,
        data: floors.map((x, i) => [x, i]),
      });
    }
    return {
      ...common(p, (x) => tip(rows[x.dataIndex], form(values[x.dataIndex]), floors.length && "bound " + form(floors[x.dataIndex]))),
      grid: { left: named.left, right, top: 6, bottom: 42 },
      xAxis: axis(p, { type: "value", name: f.x.name, nameGap: 26, axisLabel: { color: p.faint, hideOverlap: true, formatter: labels(unit, Math.max(...values)) }, splitNumber: width < 500 ? 2 : 5 }),
      yAxis: named.axis,
      series,
    };
  }

  /* 61.5 becomes 50 downwards and 100 upwards. */
  function round(x, up) {
    const power = 10 ** Math.floor(Math.log10(x));
    const steps = [1, 2, 5, 10].map((step) => step * power);
    return up ? steps.find((step) => step >= x) : steps.findLast((step) => step <= x);
  }

  /* How many times the least value the largest is where an axis is logarithmic by default. */
  const FAR = { seconds: 1, bytes: 1, number: 6, "bytes/s": 30, share: 30, times: 6 };

  /* An axis of a facet. It is logarithmic as the facet says, or by default where values differ much. A linear one begins at 0, unless the values lie so near to each other that they could not be told apart; then it says so. Points that no line joins have room to both sides. */
  function scaled(of, values, room, up) {
    if (of.names.length) return { axis: { type: "category", data: of.names }, words: "" };
    const [least, most] = [Math.min(...values), Math.max(...values)];
    if (least > 0 && (of.log ?? most >= FAR[of.quantity] * least)) {
      const base = of.quantity === "number" && most / least < 1025 ? 2 : 10;
      const across = { min: "dataMin", max: "dataMax", logBase: base };
      const ends = room ? { min: round(least / 1.1, false), max: round(most * 1.1, true) } : up ? { scale: true } : across;
      return { axis: { type: "log", ...ends }, words: of.quantity === "bytes" ? "" : " (log scale)" };
    }
    const near = least > 0.5 * most;
    return { axis: { type: "value", scale: near, boundaryGap: [0, "6%"] }, words: near ? " (the axis does not begin at 0)" : "" };
  }

  /* curves: lines and points of a facet. What has a role has its colour, and what misses a target is hollow. */
  function curves(f, p, width) {
    const [unitX, unitY] = [unitOf(f.x), unitOf(f.y)];
    const [formX, formY] = [FIGURES[unitX], FIGURES[unitY]];
    const textX = (x) => f.x.names[x] ?? formX(x);
    const lines = f.series.map((each) => ({ ...each, points: each.points.map(([x, y, low, high, label, meets]) => ({ value: [inUnit(f.x, x), inUnit(f.y, y), label], low, high, meets })) }));
    const top = legend(p, width, lines.map((each) => each.name));
    const [xs, ys] = [0, 1].map((i) => lines.flatMap((each) => each.points.map((point) => point.value[i])));
    const room = lines.some((each) => !each.line && each.mark);
    const [x, y] = [scaled(f.x, xs, room, false), scaled(f.y, ys, room, true)];
    const marked = lines.some((each) => each.colour === "today");
    const others = p.series.filter((_, i) => !marked || i !== 1);
    const free = lines.filter((each) => !each.colour);
    const colourOf = (each) => roles(p)[each.colour] ?? others[free.indexOf(each) % others.length];
    const dashes = { solid: (i) => ["solid", [9, 3], [3, 2], [9, 3, 2, 3]][i % 4], dashed: () => [10, 4], dotted: () => [3, 4] };
    const one = (each) => {
      const i = Math.max(free.indexOf(each), 0);
      const colour = colourOf(each);
      const symbol = { ring: "circle", "": "none", dot: ["circle", "rect", "triangle", "diamond"][i % 4] }[each.mark];
      const hollow = { color: p.ground, borderColor: colour, borderWidth: 2 };
      const looks = { ring: { color: "transparent", borderColor: colour, borderWidth: 1.5 }, "": { opacity: 0 }, dot: { opacity: 1 } };
      const named = each.mark === "dot" && each.points.some((point) => point.value[2]);
      return {
        type: each.line ? "line" : "scatter", name: each.name, color: colour, symbol, symbolSize: each.mark === "ring" ? 20 : each.line ? 7 : 10,
        data: each.points.map((point) => ({ ...point, ...(point.meets ? {} : { itemStyle: hollow }) })), itemStyle: looks[each.mark], silent: each.mark === "ring",
        lineStyle: { width: each.mark ? 2.25 : 1.5, type: each.line ? dashes[each.line](i) : "solid" },
        label: { show: named, position: "top", color: p.faint, formatter: (found) => found.value[2] }, labelLayout: { hideOverlap: true },
      };
    };
    const interval = (of, form, { low, high }) => low !== null && "80%: " + form(inUnit(of, low)) + " to " + form(inUnit(of, high));
    const words = (found) => (lines[found.seriesIndex].interval === "across" ? interval(f.x, formX, found.data) : interval(f.y, formY, found.data));
    const label = (formatter) => ({ axisLabel: { color: p.faint, hideOverlap: true, formatter } });
    return {
      ...common(p, (found) => tip(found.seriesName, found.value[2], f.x.name + " " + textX(found.value[0]), f.y.name + " " + formY(found.value[1]), words(found))),
      legend: top.show,
      grid: { left: 12, right: 40, top: top.height + 28, bottom: 34, containLabel: true },
      xAxis: axis(p, { name: f.x.name + x.words, nameGap: 28, ...(f.x.names.length ? {} : label(FORMATS[unitX])), ...x.axis }),
      yAxis: axis(p, { name: f.y.name + y.words, ...above, ...label(y.axis.type === "log" ? FORMATS[unitY] : labels(unitY, Math.max(...ys))), ...y.axis }),
      series: lines.map(one),
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

  /* stack: the parts of one bar. */
  function stack(f, p, width, chart) {
    const d = { unit: unitOf(f.x), parts: f.series.map(({ name, points: [[end, , begin]] }) => ({ name, value: inUnit(f.x, end - begin) })) };
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

  /* What draws a chart: a timeline has groups, and facets of bars have names of rows. */
  function kindOf(spec) {
    if (spec.groups) return timeline;
    if (!spec.y.names.length) return curves;
    return spec.y.names.some(Boolean) ? bars : stack;
  }

  function draw(chart) {
    const p = palette();
    const spec = chart.spec;
    chart.shown = chart.shown ?? [0, 100];
    const kind = kindOf(spec);
    if (kind === curves) chart.place.style.height = (root.dataset.print ? 290 : 400) + "px";
    if (chart.echarts) chart.echarts.dispose();
    chart.echarts = echarts.init(chart.place, null, { renderer: "canvas", devicePixelRatio: root.dataset.print ? 3 : Math.max(devicePixelRatio, 1) });
    chart.echarts.setOption(kind(spec, p, chart.place.clientWidth, chart));
    if (kind === timeline) {
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
      place.style.height = "400px";
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
