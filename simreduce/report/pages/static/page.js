"use strict";
simreduceCharts.show(JSON.parse(document.getElementById("charts").textContent));
