#!/bin/sh
echo one $1
