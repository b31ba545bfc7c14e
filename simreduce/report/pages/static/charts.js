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

  /* bars: the rows of a facet, and ticks that stand across them. Where the axis has ends, bars are differences from 0, and those beyond an end are cut. */
  function bars(f, p, width, chart) {
    const rows = f.y.names;
    const [values, colours, floors, texts] = [[], [], [], []];
    const unit = unitOf(f.x);
    const form = FIGURES[unit];
    const signed = (x, show) => (x < 0 ? "\u2212" : x > 0 ? "+" : "") + show(Math.abs(x));
    const ends = f.x.ends?.map((end) => inUnit(f.x, end));
    for (const each of f.series) {
      for (const [x, row, , , label] of each.points) {
        if (each.mark === "tick") floors[row] = inUnit(f.x, x);
        else [values[row], colours[row], texts[row]] = [inUnit(f.x, x), roles(p)[each.colour], label.replaceAll("-", "\u2212")];
      }
    }
    const text = (i) => (!ends ? form(values[i]) : width < 500 ? texts[i].split(", ")[0] : texts[i]);
    const named = names(p, width, rows);
    pen.font = "12px system-ui, sans-serif";
    const room = (some) => Math.ceil(Math.max(0, ...some.map((i) => pen.measureText(text(i)).width + 10)));
    const every = [...values.keys()];
    const right = ends ? 14 : room(every) + 4;
    let [least, most] = ends ?? [0, Math.max(...values)];
    if (ends) {
      const [before, after] = [room(every.filter((i) => values[i] < 0)), room(every.filter((i) => values[i] >= 0))];
      const pixel = (most - least) / Math.max(width - named.left - right - before - after, 40);
      [least, most] = [least - before * pixel, most + after * pixel];
    }
    chart.place.style.height = rows.length * Math.max(26, named.most > 2 ? named.most * 12 + 6 : 0) + 62 + "px";
    chart.echarts.resize();
    const tick = labels(unit, Math.max(most, -least));
    const series = [{
      type: "bar", barMaxWidth: 20,
      data: values.map((value, i) => ({
        value: ends ? Math.min(value, ends[1]) : value,
        itemStyle: { color: colours[i], borderRadius: value < 0 ? [3, 0, 0, 3] : [0, 3, 3, 0] },
        label: { position: value < 0 ? "left" : "right" },
      })),
      label: { show: true, color: p.ink, backgroundColor: p.ground, padding: [1, 2], formatter: (x) => text(x.dataIndex) },
      ...(ends && { markLine: { silent: true, symbol: "none", animation: false, label: { show: false }, lineStyle: { color: p.ink, width: 1.5, type: "solid" }, data: [{ xAxis: 0 }] } }),
    }];
    if (floors.length) {
      series.push({
        type: "scatter", symbol: "rect", symbolSize: [2, 16], itemStyle: { color: p.ink }, silent: true,
        data: floors.map((x, i) => [x, i]),
      });
    }
    if (ends) {
      const marked = every.filter((i) => colours[i] !== p.quiet);
      series.push({ type: "scatter", symbol: "diamond", symbolSize: 13, silent: true, z: 4, data: marked.map((i) => ({ value: [series[0].data[i].value, i], itemStyle: { color: colours[i], borderColor: p.ground, borderWidth: 1 } })) });
    }
    return {
      ...common(p, (x) => tip(rows[x.dataIndex], ends ? texts[x.dataIndex] : form(values[x.dataIndex]), floors.length && "bound " + form(floors[x.dataIndex]))),
      grid: { left: named.left, right, top: 6, bottom: 42 },
      xAxis: axis(p, {
        type: "value", name: f.x.name, nameGap: 26, splitNumber: width < 500 ? 2 : 5, ...(ends && { min: least, max: most }),
        axisLabel: { color: p.faint, hideOverlap: true, ...(ends && { showMinLabel: false, showMaxLabel: false }), formatter: (x) => (ends ? signed(x, tick) : tick(x)) },
      }),
      yAxis: { ...named.axis, axisLine: { ...named.axis.axisLine, onZero: false } },
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
    const areas = lines.some((each) => each.mark === "area");
    const [x, y] = [scaled(f.x, xs, room, false), scaled(f.y, areas ? [0, ...ys] : ys, room, true)];
    if (areas) x.axis = { type: "value", max: "dataMax" };
    const given = lines.filter((each) => each.colour).map((each) => roles(p)[each.colour] ?? each.colour);
    const others = p.series.filter((colour) => !given.includes(colour));
    const free = lines.filter((each) => !each.colour);
    const dashes = (i) => ["solid", [9, 3], [3, 2]][i] ?? [9, 3, ...Array(i - 2).fill([2, 3]).flat()];
    const symbols = ["circle", "rect", "triangle", "diamond", "roundRect", "pin"];
    /* Lines of one colour differ in their dashes and in their marks; the first of all colours do, too. */
    function lookOf(each) {
      const i = Math.max(free.indexOf(each), 0);
      const [again, place] = [Math.floor(i / others.length), i % others.length];
      const dash = again < 4 ? (place + again) % 4 : again;
      return { colour: roles(p)[each.colour] ?? (each.colour || others[place]), dash: { dashed: [10, 4], dotted: [3, 4] }[each.line] ?? dashes(dash), symbol: symbols[(place + again) % symbols.length] };
    }
    const one = (each) => {
      const { colour, dash, symbol: own } = lookOf(each);
      const symbol = { ring: "circle", "": "none", dot: own, area: "none" }[each.mark];
      const hollow = { color: p.ground, borderColor: colour, borderWidth: 2 };
      const looks = { ring: { color: "transparent", borderColor: colour, borderWidth: 1.5 }, "": { opacity: 0 }, dot: { opacity: 1 } };
      if (each.mark === "area") {
        return { type: "line", name: each.name, color: colour, stack: "all", step: "end", symbol: "none", lineStyle: { width: 1, color: p.ground }, areaStyle: { color: colour, opacity: 0.85 }, data: each.points.map((point) => point.value.slice(0, 2)) };
      }
      const named = each.mark === "dot" && each.points.some((point) => point.value[2]);
      return {
        type: each.line ? "line" : "scatter", name: each.name, color: colour, symbol, symbolSize: each.mark === "ring" ? 20 : each.line ? 7 : 10,
        data: each.points.map((point) => ({ ...point, ...(point.meets ? {} : { itemStyle: hollow }) })), itemStyle: looks[each.mark], silent: each.mark === "ring",
        lineStyle: { width: each.mark ? 2.25 : 1.5, type: each.line ? dash : "solid" },
        label: { show: named, position: "top", color: p.faint, formatter: (found) => found.value[2] }, labelLayout: { hideOverlap: true },
      };
    };
    const interval = (of, form, { low, high }) => low !== null && "80%: " + form(inUnit(of, low)) + " to " + form(inUnit(of, high));
    const words = (found) => (lines[found.seriesIndex].interval === "across" ? interval(f.x, formX, found.data) : interval(f.y, formY, found.data));
    const label = (formatter) => ({ axisLabel: { color: p.faint, hideOverlap: true, formatter } });
    return {
      ...common(p, (found) => tip(found.seriesName, found.value[2], f.x.name + " " + textX(found.value[0]), f.y.name + " " + formY(found.value[1]), words(found))),
      ...(areas && { tooltip: { ...common(p).tooltip, trigger: "axis", formatter: (found) => tip("from " + textX(found[0].value[0]), ...found.map((each) => each.seriesName + " " + formY(each.value[1]))) } }),
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
        const mine = known ? i >= 0 && left.includes(p.series[i]) && p.series[i] : left[0] ?? p.series[Object.keys(found).length % 6] + "77";
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

  function visible(item, toX, clip, y, height, keep) {
    const rects = [];
    const [left, right] = [clip.x, clip.x + clip.width];
    let until = -1;
    for (let i = firstAfter(item.end, toX.at(left)); i < item.begin.length; i++) {
      const from = Math.max(toX(item.begin[i]), left);
      if (from > right) break;
      if (keep && !keep(i)) continue;
      const to = Math.min(toX(item.end[i]), right);
      if (to - until < 0.4) continue;
      rects.push([from, y, Math.max(to - from > 4 ? to - from - 1 : to - from, 0.7), height]);
      until = to;
    }
    return rects;
  }

  const MOST_ROWS = 28;

  /* The rows that a timeline shows: those of a group, or of all groups. Items know the number of their first bar, and their row here. */
  function rowsOf(d, chosen) {
    const view = { rows: [], items: [] };
    const offset = {};
    for (const group of d.groups) {
      if (chosen && group.name !== chosen) continue;
      offset[group.name] = view.rows.length;
      view.rows.push(...group.rows.map((_, i) => rowName(d, group, i)));
    }
    let first = 0;
    for (const item of d.items) {
      if (item.group in offset) view.items.push({ ...item, first, at: offset[item.group] + item.row });
      first += item.begin.length;
    }
    return view;
  }

  /* A bar by its number, wherever it is; its row is -1 where that is not shown. */
  function barOf(chart, number) {
    let [low, high] = [0, chart.firsts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (chart.firsts[middle] <= number) low = middle + 1;
      else high = middle;
    }
    const item = chart.spec.items[low - 1];
    const i = number - chart.firsts[low - 1];
    const shown = chart.view.items.find((each) => each.first === chart.firsts[low - 1]);
    return { number, row: shown ? shown.at : -1, begin: item.begin[i], end: item.end[i], after: item.after[i], kind: item.kind, text: chart.spec.texts[item.text[i]], name: nameOf(chart.spec, item) };
  }

  /* The name of a row, with that of its group where others have such a row, too. */
  function rowName(d, group, row) {
    const name = group.rows[row];
    return d.groups.some((other) => other !== group && other.rows.includes(name)) ? group.name + ": " + name : name;
  }
  const nameOf = (d, item) => rowName(d, d.groups.find((group) => group.name === item.group), item.row);

  /* The number of the bar at a pixel of a chart, or of the nearest one of its row within 4 pixels; -1 for none. */
  function barAt(chart, x, y) {
    if (!chart.echarts.containPixel({ gridIndex: 0 }, [x, y])) return -1;
    const at = (pixel) => chart.echarts.convertFromPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [pixel, y]);
    const [time, row] = at(x);
    const near = at(x + 4)[0] - time;
    let [best, away] = [-1, near];
    for (const item of chart.view.items) {
      if (item.at !== row || chart.hidden.has(item.kind)) continue;
      const i = firstAfter(item.end, time - near);
      for (let k = i; k < Math.min(i + 3, item.begin.length); k++) {
        const far = Math.max(item.begin[k] - time, time - item.end[k], 0);
        if (far < away) [best, away] = [item.first + k, far];
      }
    }
    return best;
  }

  /* Arrows from what bars wait for to them: of the chosen bar all the way back, and to those that wait for it; of the one under the pointer its own. */
  const MOST_ARROWS = 60;
  function arrowsOf(chart) {
    const pairs = [];
    for (const [number, far] of [[chart.chosen, true], [chart.under, false]]) {
      if (number < 0) continue;
      for (let bar = barOf(chart, number); bar.after >= 0 && pairs.length < MOST_ARROWS; ) {
        const cause = barOf(chart, bar.after);
        pairs.push([cause, bar]);
        if (!far || cause.number === number) break;
        bar = cause;
      }
      for (const i of chart.followers[number] ?? []) if (pairs.length < MOST_ARROWS) pairs.push([barOf(chart, number), barOf(chart, i)]);
    }
    return pairs;
  }

  function drawArrows(chart) {
    const p = palette();
    const zr = chart.echarts.getZr();
    if (chart.arrows) zr.remove(chart.arrows);
    const group = (chart.arrows = new echarts.graphic.Group({ silent: true }));
    const grid = chart.echarts.getModel().getComponent("grid").coordinateSystem.getRect();
    group.setClipPath(new echarts.graphic.Rect({ shape: grid }));
    const place = (time, row) => chart.echarts.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [time, row]);
    const height = Math.abs(place(0, 1)[1] - place(0, 0)[1]);
    for (const number of [chart.chosen, chart.under]) {
      const bar = number < 0 ? null : barOf(chart, number);
      if (!bar || bar.row < 0) continue;
      const [[x, y], [until]] = [place(bar.begin, bar.row), place(bar.end, bar.row)];
      const style = { fill: "transparent", stroke: p.ink, lineWidth: 2 };
      group.add(new echarts.graphic.Rect({ shape: { x: x - 1, y: y - height * 0.4, width: Math.max(until - x, 1) + 2, height: height * 0.8 }, style }));
    }
    for (const [from, to] of arrowsOf(chart)) {
      if (from.row < 0 || to.row < 0) continue;
      const [[x1, y1], [x2, y2]] = [place(Math.min(from.end, to.begin), from.row), place(to.begin, to.row)];
      if (from.row === to.row && x2 - x1 < 14) continue;
      const bend = Math.max(18, Math.abs(x2 - x1) / 3);
      const stroke = (color, lineWidth) => ({ stroke: color, lineWidth, fill: null });
      const shape = { x1, y1, x2: x2 - 5, y2, cpx1: x1 + bend, cpy1: y1, cpx2: x2 - 5 - bend, cpy2: y2 };
      group.add(new echarts.graphic.BezierCurve({ shape, style: stroke(p.ground, 4) }));
      group.add(new echarts.graphic.BezierCurve({ shape, style: stroke(p.ink, 1.6) }));
      group.add(new echarts.graphic.Polygon({ shape: { points: [[x2, y2], [x2 - 8, y2 - 4.5], [x2 - 8, y2 + 4.5]] }, style: { fill: p.ink, stroke: p.ground, lineWidth: 1 } }));
    }
    group.eachChild((each) => each.attr({ z: 90, zlevel: 0, silent: true }));
    zr.add(group);
  }

  /* Whether a bar matches what is searched for, by its text, its kind or the name of its row. */
  function matcher(chart) {
    const words = chart.query.trim().toLowerCase();
    if (!words) return null;
    const has = (text) => text.toLowerCase().includes(words);
    const texts = chart.spec.texts.map(has);
    const rows = Object.fromEntries(chart.view.items.map((item) => [item.first, has(nameOf(chart.spec, item))]));
    return (item, i) => texts[item.text[i]] || has(item.kind) || rows[item.first];
  }

  function timeline(d, p, width, chart) {
    const group = (chart.view = rowsOf(d, chart.group));
    const named = names(p, width, group.rows);
    const usual = d.kinds.filter((kind) => kind !== "critical path");
    const colours = { ...meanings(usual, p), "critical path": p.path };
    const kinds = d.kinds.filter((kind) => group.items.some((item) => item.kind === kind));
    const items = Object.fromEntries(kinds.map((kind) => [kind, group.items.filter((item) => item.kind === kind)]));
    const hide = group.rows.length > MOST_ROWS;
    const printed = Boolean(root.dataset.print);
    const top = legend(p, width, kinds);
    const shown = () => (d.whole * (chart.shown[1] - chart.shown[0])) / 100;
    const matches = matcher(chart);
    chart.place.style.height = Math.max(Math.min(group.rows.length, MOST_ROWS) * Math.max(22, named.most * 12 + 4) + 58 + top.height, 140) + "px";
    chart.echarts.resize();
    const render = (kind) => (params, api) => {
      const item = items[kind][params.dataIndex];
      const [x0, y] = api.coord([0, item.at]);
      const scale = api.coord([d.whole, item.at])[0] - x0;
      const toX = (t) => x0 + (t / d.whole) * scale;
      toX.at = (x) => ((x - x0) / scale) * d.whole;
      const height = Math.min(api.size([0, 1])[1] * 0.72, 22);
      const box = params.coordSys;
      if (y < box.y || y > box.y + box.height) return null;
      const part = (keep, opacity) => ({ type: "bars", shape: { rects: visible(item, toX, box, y - height / 2, height, keep) }, style: { fill: colours[kind], opacity } });
      if (!matches) return part(null, 1);
      return { type: "group", children: [part((i) => !matches(item, i), 0.18), part((i) => matches(item, i), 1)] };
    };
    function formatter() {
      if (chart.under < 0) return "";
      const bar = barOf(chart, chart.under);
      const cause = bar.after < 0 ? null : barOf(chart, bar.after);
      return tip(bar.name, bar.text, time(bar.begin) + " to " + time(bar.end) + ", " + time(bar.end - bar.begin), bar.kind, cause && `waits for ${cause.text} (${cause.name})`);
    }
    const touch = matchMedia("(pointer: coarse)").matches;
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
        { type: "inside", xAxisIndex: 0, start: chart.shown[0], end: chart.shown[1], zoomOnMouseWheel: wheel(chart), moveOnMouseMove: touch ? false : "shift", preventDefaultMouseMove: !touch, ...zoom },
        { ...slider, show: !printed, xAxisIndex: 0, height: 18, bottom: 4, ...zoom },
        ...(hide ? [{ ...slider, show: !printed, yAxisIndex: 0, width: 14, right: 2, startValue: chart.row, endValue: chart.row + MOST_ROWS - 1, zoomLock: true, ...zoom }] : []),
      ],
      series: kinds.map((kind) => ({
        type: "custom", name: kind, renderItem: render(kind), progressive: 0, encode: { x: -1, y: 0 }, clip: true,
        itemStyle: { color: colours[kind] }, data: items[kind].map((item) => [item.at]),
      })),
    };
  }

  /* The wheel zooms a timeline that has the focus; others leave it to the page unless Ctrl is held. */
  const wheel = (chart) => (document.activeElement === chart.place ? true : "ctrl");

  /* Pointer on a timeline: what is under it, a span that is dragged to zoom, a bar that is chosen. */
  function follow(chart) {
    const zr = chart.echarts.getZr();
    let [from, band] = [null, null];
    zr.on("mousemove", (event) => {
      const under = from === null ? barAt(chart, event.offsetX, event.offsetY) : -1;
      if (under !== chart.under) {
        chart.under = under;
        drawArrows(chart);
      }
      zr.setCursorStyle(under < 0 ? "default" : "pointer");
      if (from === null) return;
      const box = chart.echarts.getModel().getComponent("grid").coordinateSystem.getRect();
      const [a, b] = [from, event.offsetX].sort((one, other) => one - other).map((x) => Math.min(Math.max(x, box.x), box.x + box.width));
      if (!band) zr.add((band = new echarts.graphic.Rect({ z: 100, silent: true, style: { fill: palette().quiet, opacity: 0.45 } })));
      band.attr("shape", { x: a, y: box.y, width: b - a, height: box.height });
    });
    zr.on("mousedown", (event) => {
      chart.place.focus({ preventScroll: true });
      const inside = chart.echarts.containPixel({ gridIndex: 0 }, [event.offsetX, event.offsetY]);
      from = inside && !event.event.shiftKey && !event.event.zrByTouch ? event.offsetX : null;
    });
    zr.on("mouseup", (event) => {
      const began = from;
      if (band) zr.remove(band);
      [from, band] = [null, null];
      if (began !== null && Math.abs(event.offsetX - began) > 6) {
        const whole = chart.spec.whole / 100;
        const [a, b] = [began, event.offsetX].sort((one, other) => one - other).map((x) => chart.echarts.convertFromPixel({ xAxisIndex: 0 }, x) / whole);
        zoomTo(chart, a, b - a);
      } else if (chart.echarts.containPixel({ gridIndex: 0 }, [event.offsetX, event.offsetY])) {
        choose(chart, barAt(chart, event.offsetX, event.offsetY));
      }
    });
    zr.on("globalout", () => {
      if (band) zr.remove(band);
      [from, band, chart.under] = [null, null, -1];
      drawArrows(chart);
    });
    chart.echarts.on("datazoom", () => {
      chart.shown = span(chart);
      chart.row = Math.round(chart.echarts.getOption().dataZoom[2]?.startValue ?? 0);
      drawArrows(chart);
    });
    chart.echarts.on("legendselectchanged", ({ selected }) => {
      chart.hidden = new Set(Object.keys(selected).filter((kind) => !selected[kind]));
    });
  }

  /* Choose a bar and say which; a page's script and the keyboard may do that, too. */
  function choose(chart, number) {
    chart.chosen = number;
    const bar = number < 0 ? null : barOf(chart, number);
    const cause = bar && bar.after >= 0 ? barOf(chart, bar.after) : null;
    chart.say(bar ? `${bar.name}: ${bar.text}, ${time(bar.begin)} to ${time(bar.end)}${cause ? `; waits for ${cause.text} (${cause.name})` : ""}` : "");
    drawArrows(chart);
  }

  /* Highlight what matches the words, and go to the first bar that does, or to the next one. */
  function search(chart, words, next) {
    const again = chart.query === words;
    chart.query = words;
    const matches = matcher(chart);
    if (!again) {
      chart.found = [];
      if (matches) for (const item of chart.view.items) item.begin.forEach((_, i) => matches(item, i) && chart.found.push(item.first + i));
      chart.found.sort((a, b) => barOf(chart, a).begin - barOf(chart, b).begin);
      chart.next = -1;
      draw(chart);
      choose(chart, -1);
    }
    chart.say(matches ? `${chart.found.length.toLocaleString("en")} ${chart.found.length === 1 ? "bar matches" : "bars match"}` : "");
    if (!next || !chart.found.length) return;
    chart.next = (chart.next + 1) % chart.found.length;
    const bar = barOf(chart, chart.found[chart.next]);
    const [start, end] = chart.shown;
    const middle = ((bar.begin + bar.end) / 2 / chart.spec.whole) * 100;
    if (middle < start || middle > end) zoomTo(chart, middle - (end - start) / 2, end - start);
    scrollRows(chart, bar.row - chart.row - MOST_ROWS / 2);
    choose(chart, bar.number);
  }

  /* What draws a chart: a timeline has groups, and facets of bars have names of rows. */
  function kindOf(spec) {
    if (spec.items) return timeline;
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
    if (kind === timeline) follow(chart);
    chart.echarts.setOption(kind(spec, p, chart.place.clientWidth, chart));
    if (kind === timeline) drawArrows(chart);
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
    none: (chart) => choose(chart, -1),
    up: (chart) => scrollRows(chart, -4),
    down: (chart) => scrollRows(chart, 4),
  };
  function scrollRows(chart, by) {
    const zoom = chart.echarts.getOption().dataZoom[2];
    const last = chart.view.rows.length - 1;
    if (!zoom) return;
    const first = Math.min(Math.max(Math.round(zoom.startValue) + by, 0), last - MOST_ROWS + 1);
    chart.echarts.dispatchAction({ type: "dataZoom", dataZoomIndex: 2, startValue: first, endValue: first + MOST_ROWS - 1 });
  }
  const act = (chart, what) => ACTIONS[what](chart, span(chart));
  const KEYS = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", a: "left", d: "right", w: "in", s: "out", "+": "in", "=": "in", "-": "out", 0: "all", Escape: "none" };

  /* Numbers of the first bars of items, and who waits for each bar. */
  function index(chart) {
    [chart.firsts, chart.followers] = [[], {}];
    let number = 0;
    for (const item of chart.spec.items) {
      chart.firsts.push(number);
      for (const cause of item.after) {
        if (cause >= 0) (chart.followers[cause] ??= []).push(number);
        number += 1;
      }
    }
  }

  function equip(chart, number) {
    const tools = document.querySelector(`[data-tools="${number}"]`);
    if (!tools) return;
    const choices = tools.querySelector(".groups");
    const groups = chart.spec.groups.map((group) => group.name);
    choices.hidden = groups.length < 2;
    ["", ...groups].forEach((group) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = group || "All rows";
      button.setAttribute("aria-pressed", String(group === chart.group));
      button.addEventListener("click", () => {
        [chart.group, chart.row] = [group, 0];
        [...choices.children].forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
        draw(chart);
      });
      choices.append(button);
    });
    const words = tools.querySelector("input");
    words.addEventListener("input", () => search(chart, words.value, false));
    words.addEventListener("keydown", (event) => {
      if (event.key === "Enter") search(chart, words.value, true);
    });
    const said = tools.parentElement.querySelector("output");
    chart.say = (text) => { said.textContent = text; };
    for (const event of ["focus", "blur"]) {
      chart.place.addEventListener(event, () => chart.echarts.setOption({ dataZoom: [{ zoomOnMouseWheel: wheel(chart) }] }));
    }
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
      const chart = { place, spec: specs[key], text: JSON.stringify(specs[key]), group: "", row: 0, query: "", found: [], under: -1, chosen: -1, hidden: new Set(), say: () => {} };
      if (chart.spec.items) index(chart);
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
