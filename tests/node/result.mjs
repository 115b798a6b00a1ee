// A script's result is one line of JSON on standard output: what tests/support/clients/node.py returns to the test.

/**
 * Prints the resolved values of an object of promises.
 *
 * @param {Record<string, unknown>} results
 */
export async function report(results) {
  const pairs = Object.entries(results).map(async ([name, result]) => [name, await result]);
  console.log(JSON.stringify(Object.fromEntries(await Promise.all(pairs))));
}

/**
 * What an SDK call throws: the class of the error and some of its properties.
 *
 * @param {Promise<unknown>} call
 * @param {...string} properties
 */
export async function thrown(call, ...properties) {
  const error = await call.then(
    () => null,
    (error) => error,
  );
  return error && [error.constructor.name, ...properties.map((name) => error[name])];
}

/**
 * The items of an async iterable.
 *
 * @template Item
 * @param {AsyncIterable<Item> | Promise<AsyncIterable<Item>>} iterable
 */
export async function collected(iterable) {
  /** @type {Item[]} */
  const items = [];
  for await (const item of await iterable) items.push(item);
  return items;
}
