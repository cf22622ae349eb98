// Numbers as words: short on an axis, exact where one value is read.

const SUFFIXES = [[1e15, "e15"], [1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
const MINUS = "\u2212";

const plain = (value, digits) => String(Number(value.toPrecision(digits)));
const signed = (text) => text.replace(/^-/, MINUS).replace("e-", `e${MINUS}`).replace("e+", "e");

/** A few characters: 12k, 3.5B, 0.004, 3e-4. */
const shortNumber = (value, digits = 4) => {
  if (value === null || value === undefined) return "";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e16)) {
    return signed(Number(value.toPrecision(digits)).toExponential());
  }
  if (size < 1e4) return signed(plain(value, digits));
  const [unit, suffix] = SUFFIXES.find(([least]) => size >= least);
  return signed(plain(value / unit, digits)) + suffix;
};

/** Up to seven digits, thousands set apart. */
const exactNumber = (value) => {
  if (value === null || value === undefined) return "\u2013";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e15)) {
    return signed(Number(value.toPrecision(5)).toExponential());
  }
  if (Number.isInteger(value) || size >= 1e6) {
    return signed(Math.round(value).toLocaleString("en-US"));
  }
  return signed(plain(value, 6));
};

const duration = (seconds) => {
  if (seconds === null || !Number.isFinite(seconds)) return "\u2013";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 1) return `${plain(seconds * 1e3, 3)} ms`;
  if (size < 60) return `${plain(seconds, 3)} s`;
  const whole = Math.round(seconds);
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "m"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([count]) => count > 0);
  return parts.slice(first, first + 2)
    .filter(([count]) => count > 0)
    .map(([count, unit]) => count + unit)
    .join(" ");
};

const bytes = (count) => {
  const [unit, name] = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]
    .find(([least]) => Math.abs(count) >= least) ?? [1, "B"];
  return `${plain(count / unit, 4)} ${name}`;
};

/** A value as it stands on an axis, by the metric's unit. */
const tickWords = (value, unit) => {
  if (unit === "s") return duration(value);
  return unit === "bytes" ? bytes(value) : shortNumber(value);
};

/** A value with its unit, as it is read. */
const valueWords = (value, unit) => {
  if (value === null || value === undefined) return "\u2013";
  if (unit === "bytes") return bytes(value);
  if (unit === "s") return duration(value);
  if (unit === "%") return `${exactNumber(value)} %`;
  return unit && unit !== "-" ? `${exactNumber(value)} ${unit}` : exactNumber(value);
};

/** A place on the x axis. */
const placeWords = (place, axis) => {
  if (axis === "step") return `step ${exactNumber(Math.round(place))}`;
  if (axis === "seconds") return `after ${duration(place)}`;
  return axis === "tokens" ? `${shortNumber(place)} tokens` : `${shortNumber(place)} FLOPs`;
};

const shareWords = (share) => {
  const percent = 100 * share;
  return `${percent >= 10 ? percent.toFixed(0) : percent.toFixed(1)} %`;
};

const counted = (count, noun) =>
  `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
