// Marks over a chart's curves: resumes, spikes, edges of stages, ceilings, the pinned point.
// Each is drawn on the chart's canvas after its curves, in device pixels.

const verticalLine = (plot, place, colour, dash) => {
  const { ctx, bbox } = plot;
  const x = Math.round(plot.valToPos(place, "x", true)) + 0.5;
  if (x < bbox.left || x > bbox.left + bbox.width) return null;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
  return x;
};

const resumesInSight = () => onAxis().flatMap((run) => run.resumes.map((resume) =>
  ({ run, ...resume, place: placeOfStep(run, resume.step, view.axis) })));

/** A line and a small triangle on the axis where a later attempt began. */
const drawResumes = (plot) => {
  const { ctx, bbox } = plot;
  const size = 5 * devicePixelRatio;
  for (const { run, place } of resumesInSight()) {
    const colour = colourOf(colourNameOf(run));
    ctx.save();
    ctx.globalAlpha = view.highlighted && view.highlighted !== run ? DIMMED : 0.7;
    const x = verticalLine(plot, place, colour, [1, 4]);
    if (x !== null) {
      const foot = bbox.top + bbox.height;
      ctx.fillStyle = colour;
      ctx.beginPath();
      ctx.moveTo(x - size, foot);
      ctx.lineTo(x + size, foot);
      ctx.lineTo(x, foot - 1.6 * size);
      ctx.fill();
    }
    ctx.restore();
  }
};

const drawRing = (plot, place, value, colour, radius) => {
  const { ctx, bbox } = plot;
  const x = plot.valToPos(place, "x", true);
  const y = plot.valToPos(value, "y", true);
  const isInside = x >= bbox.left && x <= bbox.left + bbox.width
    && y >= bbox.top && y <= bbox.top + bbox.height;
  if (!isInside) return false;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.fillStyle = colourOf("--ground");
  ctx.lineWidth = 1.75 * devicePixelRatio;
  ctx.setLineDash([]); // a curve may have left its own
  ctx.beginPath();
  ctx.arc(x, y, radius * devicePixelRatio, 0, 2 * Math.PI);
  ctx.fill();
  ctx.stroke();
  ctx.restore();
  return true;
};

/** A ring on each spike; gives the chart the number it drew. */
const drawSpikes = (plot, chart) => {
  chart.spikesDrawn = 0;
  for (const run of onAxis()) {
    for (const spike of run.spikes) {
      const place = placeOfStep(run, spike.step, view.axis);
      const isDrawn = drawRing(plot, place, spike.value, colourOf("--alarm"), 3.5);
      if (isDrawn) chart.spikesDrawn += 1;
    }
  }
};

const drawPinned = (plot, chart) => {
  const pinned = view.pinned;
  if (!pinned || !isShown(pinned.run) || !hasAxis(pinned.run, view.axis)) return;
  const place = placeOfStep(pinned.run, pinned.step, view.axis);
  verticalLine(plot, place, colourOf("--text"), [4, 3]);
  if (pinned.name === chart.spec.name && pinned.value !== null) {
    drawRing(plot, place, pinned.value, colourOf(colourNameOf(pinned.run)), 4.5);
  }
};

/** Where the stages of a run's mixture begin, after the first. */
const drawStages = (run) => (plot) => {
  for (const stage of run.mixture.stages.slice(1)) {
    verticalLine(plot, placeOfStep(run, stage.first_step, view.axis), colourOf("--quiet"), [6, 4]);
  }
};

/** Level lines with a word at their right end; `ceilings()` gives [{value, words, colour}]. */
const drawCeilings = (ceilings) => (plot) => {
  const { ctx, bbox } = plot;
  for (const { value, words, colour } of ceilings()) {
    const y = Math.round(plot.valToPos(value, "y", true)) + 0.5;
    if (y < bbox.top || y > bbox.top + bbox.height) continue;
    ctx.save();
    ctx.strokeStyle = colourOf(colour);
    ctx.fillStyle = colourOf(colour);
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([7 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    ctx.textBaseline = "bottom";
    ctx.fillText(words, bbox.left + bbox.width - 4, y - 2 * devicePixelRatio);
    ctx.restore();
  }
};
