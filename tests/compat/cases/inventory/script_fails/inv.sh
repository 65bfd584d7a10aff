#!/bin/sh
echo no credentials >&2
exit 3
